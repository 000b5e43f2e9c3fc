// Rows in, rows out: copying the leaves of items between a storage and contiguous batches.
//
// A *plan* describes the leaves: `leaves` entries of four int64 each,
//     address   of the leaf in item 0
//     stride    bytes from one item to the next (>= 0)
//     bytes     of the leaf in one item (0 is allowed: nothing is copied)
//     group     leaves that lie in the same row bear the same number and stand next to each other
// Leaves of one group must have one stride. A batch holds, for each leaf, `count * bytes` contiguous bytes at the
// address given for it.
//
// Contract of all kernels
//   - `n` is the number of items there are; an index i means item i for 0 <= i < n and item n + i for
//     -n <= i < 0. Anything else makes the kernel return the position of the first such index, before a
//     byte has been copied. -1 is success.
//   - Runs are taken modulo `n`: start, start + 1, ..., n - 1, 0, ... with 0 <= start < n, count <= n.
//   - Batches and items must not overlap; the scatter kernels return -2, and have copied nothing, where they do.
//   - O(count * bytes), no allocation except for threads, no state. Two calls may read at once; a call that
//     writes must be alone with the items that it writes (the buffer's lock sees to it).
//   - `threads` > 1 shares the items out over that many threads of a pool (thread_pool.hpp). Only large copies gain:
//     waking a thread costs some 10 microseconds, in which one core copies about 100 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thread_pool.hpp"

namespace replaybank {

struct Leaf {
    std::int64_t address;
    std::int64_t stride;
    std::int64_t bytes;
    std::int64_t group;
};
static_assert(sizeof(Leaf) == 4 * sizeof(std::int64_t), "a plan is an int64 array of four columns");

namespace detail {

// Items per block: their indices fit in a few cache lines and 32 rows of 192 bytes in a quarter of the first-level
// cache, so that the rows are still there when the second leaf of the block is copied.
constexpr std::int64_t kBlock = 32;
// Lines asked for ahead per row; beyond these the hardware has seen the direction.
constexpr std::int64_t kPrefetchLines = 8;
constexpr std::int64_t kLine = 64;
// What a thread takes at a time: some ten microseconds of copying, so that the last piece delays little.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 17;

// Into the second-level cache: a core waits for a dozen or two lines at once on their way to the first level, for two
// or three times as many on their way to the second (4096 rows of 192 bytes out of 192 MB: 52 instead of 173
// microseconds).
inline void prefetch(const char* address) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(address, 0, 2);
#else
    (void)address;
#endif
}

// memcpy for sizes that the compiler does not know: two overlapping fixed copies instead of a call.
template <std::size_t Chunk>
inline void copy_chunks(char* to, const char* from, std::size_t bytes) {  // bytes >= Chunk
    std::size_t at = 0;
    for (; at + Chunk <= bytes; at += Chunk) std::memcpy(to + at, from + at, Chunk);
    if (at != bytes) std::memcpy(to + bytes - Chunk, from + bytes - Chunk, Chunk);
}

struct ToBatch {
    static constexpr bool kScatters = false;
};
struct FromBatch {
    static constexpr bool kScatters = true;
};

template <class Direction, class Copy>
inline void each(const std::int64_t* items, std::int64_t count, char* base, std::int64_t stride, char* batch,
                 std::int64_t bytes, Copy copy) {
    for (std::int64_t k = 0; k < count; ++k, batch += bytes) {
        char* item = base + items[k] * stride;
        if constexpr (Direction::kScatters) {
            copy(item, batch);
        } else {
            copy(batch, item);
        }
    }
}

template <class Direction, std::size_t N>
inline void each_fixed(const std::int64_t* items, std::int64_t count, char* base, std::int64_t stride, char* batch) {
    each<Direction>(items, count, base, stride, batch, static_cast<std::int64_t>(N),
                    [](char* to, const char* from) { std::memcpy(to, from, N); });
}

// One leaf of one block. The choice of the copy is made once a block, not once an item.
template <class Direction>
inline void copy_block(const Leaf& leaf, const std::int64_t* items, std::int64_t count, char* batch) {
    char* base = reinterpret_cast<char*>(leaf.address);
    const auto bytes = static_cast<std::size_t>(leaf.bytes);
    switch (bytes) {
        case 0: return;
        case 1: return each_fixed<Direction, 1>(items, count, base, leaf.stride, batch);
        case 2: return each_fixed<Direction, 2>(items, count, base, leaf.stride, batch);
        case 4: return each_fixed<Direction, 4>(items, count, base, leaf.stride, batch);
        case 8: return each_fixed<Direction, 8>(items, count, base, leaf.stride, batch);
        case 12: return each_fixed<Direction, 12>(items, count, base, leaf.stride, batch);
        case 16: return each_fixed<Direction, 16>(items, count, base, leaf.stride, batch);
        case 24: return each_fixed<Direction, 24>(items, count, base, leaf.stride, batch);
        case 32: return each_fixed<Direction, 32>(items, count, base, leaf.stride, batch);
        default: break;
    }
    if (bytes >= 16 && bytes <= 512) {
        each<Direction>(items, count, base, leaf.stride, batch, leaf.bytes,
                        [bytes](char* to, const char* from) { copy_chunks<16>(to, from, bytes); });
    } else {
        each<Direction>(items, count, base, leaf.stride, batch, leaf.bytes,
                        [bytes](char* to, const char* from) { std::memcpy(to, from, bytes); });
    }
}

// The cache lines that a group's leaves span, relative to an item.
struct Span {
    std::int64_t first;
    std::int64_t lines;
};

inline Span span_of(const Leaf* leaf, const Leaf* end) {
    std::int64_t low = leaf->address;
    std::int64_t high = leaf->address + leaf->bytes;
    for (++leaf; leaf != end; ++leaf) {
        if (leaf->address < low) low = leaf->address;
        if (leaf->address + leaf->bytes > high) high = leaf->address + leaf->bytes;
    }
    const std::int64_t lines = (high - low + kLine - 1) / kLine;
    return {low, lines < kPrefetchLines ? lines : kPrefetchLines};
}

inline const Leaf* end_of_group(const Leaf* leaf, const Leaf* end) {
    const std::int64_t group = leaf->group;
    while (leaf != end && leaf->group == group) ++leaf;
    return leaf;
}

// Numbers of the items: an index (checked before) or a run.
struct Listed {
    const std::int64_t* index;
    std::int64_t n;
    std::int64_t operator()(std::int64_t k) const {
        const std::int64_t i = index[k];
        return i < 0 ? i + n : i;
    }
};
struct Run {
    std::int64_t start;
    std::int64_t n;
    std::int64_t operator()(std::int64_t k) const {
        const std::int64_t i = start + k;
        return i < n ? i : i - n;
    }
};

template <class Direction, class Items>
void copy_items(const Leaf* leaves, const Leaf* end, Items items, std::int64_t first, std::int64_t last,
                const std::uintptr_t* batches) {
    std::int64_t numbers[2][kBlock];
    for (const Leaf* group = leaves; group != end;) {
        const Leaf* group_end = end_of_group(group, end);
        const Span span = span_of(group, group_end);
        const auto ask = [&](std::int64_t from, std::int64_t* block) {
            const std::int64_t count = last - from < kBlock ? last - from : kBlock;
            for (std::int64_t k = 0; k < count; ++k) {
                const std::int64_t item = items(from + k);
                block[k] = item;
                const char* line = reinterpret_cast<const char*>(span.first + item * group->stride);
                for (std::int64_t l = 0; l < span.lines; ++l) prefetch(line + l * kLine);
            }
        };
        int now = 0;
        if (first < last) ask(first, numbers[now]);
        for (std::int64_t at = first; at < last; at += kBlock, now ^= 1) {
            if (at + kBlock < last) ask(at + kBlock, numbers[now ^ 1]);
            const std::int64_t count = last - at < kBlock ? last - at : kBlock;
            for (const Leaf* leaf = group; leaf != group_end; ++leaf) {
                char* batch = reinterpret_cast<char*>(batches[leaf - leaves]) + at * leaf->bytes;
                copy_block<Direction>(*leaf, numbers[now], count, batch);
            }
        }
        group = group_end;
    }
}

// part(first, last) for all of [0, count), shared out over threads in pieces of about kPieceBytes.
template <class Part>
void in_parts(std::int64_t count, std::int64_t item_bytes, std::int64_t threads, const Part& part) {
    if (threads <= 1 || count <= 1) {
        part(0, count);
        return;
    }
    const std::int64_t wanted = count * item_bytes / kPieceBytes;
    const std::int64_t pieces = wanted < count ? (wanted > threads ? wanted : (threads < count ? threads : count)) : count;
    ThreadPool::run(pieces, threads - 1,
                    [&](std::int64_t k) { part(count * k / pieces, count * (k + 1) / pieces); });
}

template <class Direction, class Items>
void share_out(const Leaf* leaves, std::int64_t leaf_count, Items items, std::int64_t count,
               const std::uintptr_t* batches, std::int64_t threads) {
    const Leaf* end = leaves + leaf_count;
    std::int64_t bytes = 0;
    for (const Leaf* leaf = leaves; leaf != end; ++leaf) bytes += leaf->bytes;
    in_parts(count, bytes, threads, [=](std::int64_t first, std::int64_t last) {
        copy_items<Direction>(leaves, end, items, first, last, batches);
    });
}

inline std::int64_t first_bad(const std::int64_t* index, std::int64_t count, std::int64_t n) {
    for (std::int64_t k = 0; k < count; ++k) {
        if (index[k] >= n || index[k] < -n) return k;
    }
    return -1;
}

inline bool overlaps(const Leaf* leaves, std::int64_t leaf_count, std::int64_t n, std::int64_t count,
                     const std::uintptr_t* batches) {
    if (n == 0 || count == 0) return false;
    for (std::int64_t l = 0; l < leaf_count; ++l) {
        const auto batch = static_cast<std::int64_t>(batches[l]);
        const std::int64_t batch_end = batch + count * leaves[l].bytes;
        for (std::int64_t m = 0; m < leaf_count; ++m) {
            const std::int64_t low = leaves[m].address;
            const std::int64_t high = low + (n - 1) * leaves[m].stride + leaves[m].bytes;
            if (batch < high && low < batch_end) return true;
        }
    }
    return false;
}

}  // namespace detail

// batch[k] = item[index[k]]
inline std::int64_t gather(const Leaf* leaves, std::int64_t leaf_count, std::int64_t n, const std::int64_t* index,
                           std::int64_t count, const std::uintptr_t* batches, std::int64_t threads) {
    const std::int64_t bad = detail::first_bad(index, count, n);
    if (bad >= 0) return bad;
    detail::share_out<detail::ToBatch>(leaves, leaf_count, detail::Listed{index, n}, count, batches, threads);
    return -1;
}

// batch[k] = item[(start + k) mod n]
inline std::int64_t gather_run(const Leaf* leaves, std::int64_t leaf_count, std::int64_t n, std::int64_t start,
                               std::int64_t count, const std::uintptr_t* batches, std::int64_t threads) {
    if (start < 0 || count < 0 || count > n || (start >= n && count > 0)) return 0;
    detail::share_out<detail::ToBatch>(leaves, leaf_count, detail::Run{start, n}, count, batches, threads);
    return -1;
}

// item[index[k]] = batch[k], in order: of repeated indices the last wins (one thread, therefore).
inline std::int64_t scatter(const Leaf* leaves, std::int64_t leaf_count, std::int64_t n, const std::int64_t* index,
                            std::int64_t count, const std::uintptr_t* batches) {
    const std::int64_t bad = detail::first_bad(index, count, n);
    if (bad >= 0) return bad;
    if (detail::overlaps(leaves, leaf_count, n, count, batches)) return -2;
    detail::share_out<detail::FromBatch>(leaves, leaf_count, detail::Listed{index, n}, count, batches, 1);
    return -1;
}

// item[(start + k) mod n] = batch[k]
inline std::int64_t scatter_run(const Leaf* leaves, std::int64_t leaf_count, std::int64_t n, std::int64_t start,
                                std::int64_t count, const std::uintptr_t* batches, std::int64_t threads) {
    if (start < 0 || count < 0 || count > n || (start >= n && count > 0)) return 0;
    if (detail::overlaps(leaves, leaf_count, n, count, batches)) return -2;
    detail::share_out<detail::FromBatch>(leaves, leaf_count, detail::Run{start, n}, count, batches, threads);
    return -1;
}

// Numbers of items from one index a dimension, in C order over `sizes`: out[k] = sum of index[d][k] * stride[d].
// Each index[d][k] must be in [-sizes[d], sizes[d]); negative ones count from the end. Returns -1, or
// k * dims + d for the first that is not, and `out` is then of no use. O(count * dims).
inline std::int64_t flatten_index(const std::uintptr_t* indices, const std::int64_t* sizes, std::int64_t dims,
                                  std::int64_t count, std::int64_t* out) {
    for (std::int64_t k = 0; k < count; ++k) {
        std::int64_t item = 0;
        for (std::int64_t d = 0; d < dims; ++d) {
            const std::int64_t i = reinterpret_cast<const std::int64_t*>(indices[d])[k];
            if (i >= sizes[d] || i < -sizes[d]) return k * dims + d;
            item = item * sizes[d] + (i < 0 ? i + sizes[d] : i);
        }
        out[k] = item;
    }
    return -1;
}

}  // namespace replaybank
