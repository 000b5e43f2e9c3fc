// Byte strings of any length in blocks of one size, chained: no fragmentation, no compaction, whatever is freed.
//
// Blocks lie in chunks of `chunk_blocks` each; block i is block i mod chunk_blocks of chunk i / chunk_blocks. A block
// is an int32, the number of the next block of its chain (-1: none), and kPayload bytes. Free blocks are a chain too.
//     header    int64[3]: blocks ever taken (the mark), first free block + 1 (0: none), blocks on that chain
// Freed blocks are taken first, so that memory which is taken as it is first touched stays small. O(bytes), no
// allocation. Reading may go on in several threads; who writes must be alone (the buffer's lock sees to it).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace replaybank {

struct Blocks {
    const std::uintptr_t* chunks;
    std::int64_t chunk_blocks;
    std::int64_t capacity;
    std::int64_t* header;

    static constexpr std::int64_t kBlock = 256;
    static constexpr std::int64_t kPayload = kBlock - 4;

    static std::int64_t needed(std::int64_t bytes) { return (bytes + kPayload - 1) / kPayload; }
    std::int64_t free() const { return header[2] + capacity - header[0]; }

    char* at(std::int64_t block) const {
        return reinterpret_cast<char*>(chunks[block / chunk_blocks]) + block % chunk_blocks * kBlock;
    }
    std::int32_t next(std::int64_t block) const {
        std::int32_t found;
        std::memcpy(&found, at(block), sizeof found);
        return found;
    }
    void link(std::int64_t block, std::int64_t next) const {
        const auto number = static_cast<std::int32_t>(next);
        std::memcpy(at(block), &number, sizeof number);
    }
    std::int64_t take() const {
        if (header[2] == 0) return header[0]++;
        const std::int64_t block = header[1] - 1;
        header[1] = next(block) + 1;
        --header[2];
        return block;
    }
};

// Number of the first block of a new chain that holds `bytes` > 0 bytes; -1, and nothing is taken, where too few
// blocks are free.
inline std::int64_t blocks_write(const Blocks& blocks, const char* from, std::int64_t bytes) {
    if (Blocks::needed(bytes) > blocks.free()) return -1;
    std::int64_t first = -1;
    std::int64_t last = -1;
    for (std::int64_t done = 0; done < bytes; done += Blocks::kPayload) {
        const std::int64_t block = blocks.take();
        std::memcpy(blocks.at(block) + 4, from + done,
                    static_cast<std::size_t>(std::min(Blocks::kPayload, bytes - done)));
        blocks.link(block, -1);
        if (last < 0) {
            first = block;
        } else {
            blocks.link(last, block);
        }
        last = block;
    }
    return first;
}

// Gives back a chain of `bytes` bytes.
inline void blocks_free(const Blocks& blocks, std::int64_t first, std::int64_t bytes) {
    std::int64_t last = first;
    for (std::int64_t left = Blocks::needed(bytes) - 1; left > 0; --left) last = blocks.next(last);
    blocks.link(last, blocks.header[1] - 1);
    blocks.header[1] = first + 1;
    blocks.header[2] += Blocks::needed(bytes);
}

// Copies a chain of `bytes` bytes. False if it is damaged: it ends early or leads out of the blocks.
inline bool blocks_read(const Blocks& blocks, std::int64_t first, std::int64_t bytes, char* to) {
    std::int64_t block = first;
    for (std::int64_t done = 0; done < bytes; done += Blocks::kPayload) {
        if (block < 0 || block >= blocks.header[0]) return false;
        std::memcpy(to + done, blocks.at(block) + 4,
                    static_cast<std::size_t>(std::min(Blocks::kPayload, bytes - done)));
        block = blocks.next(block);
    }
    return true;
}

}  // namespace replaybank
