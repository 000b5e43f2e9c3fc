// Slots of one size that are taken and given back in any order: a high-water mark and a stack of free ones.
//
// State, in arrays of the caller (shareable between processes, zero at the start):
//     header    int64[2]: slots ever taken (the mark), slots on the stack
//     freed     int32[capacity]: the stack
// Free slots are reused before new ones, so that memory which is taken as it is first touched stays small.
// O(1) a slot, no allocation. Not thread-safe: the buffer's lock guards it.
#pragma once

#include <cstdint>

namespace replaybank {

struct Slots {
    std::int64_t* header;
    std::int32_t* freed;
    std::int64_t capacity;

    std::int64_t free() const { return header[1] + capacity - header[0]; }

    // -1 if all are taken.
    std::int64_t take() const {
        if (header[1] > 0) return freed[--header[1]];
        return header[0] < capacity ? header[0]++ : -1;
    }

    void give(std::int64_t slot) const { freed[header[1]++] = static_cast<std::int32_t>(slot); }
};

}  // namespace replaybank
