// Slices of episodes, copied to their places in a batch.
//
// A batch is `count` slices of `length` steps each, one behind the other. Its *plan* is int64: first the addresses of the
// entries that no file has, one byte a step but for the first two, which are int32,
//     step, episode, is_init, done, terminated, truncated, next done, next terminated, next truncated, next valid
// and then three numbers for each array of numbers,
//     address of its entry in the batch
//     address of the same entry under "next", which is one step ahead, 0: there is none
//     bytes of a step
//
// A slice is `steps` <= `length` steps of an episode of `there` steps, from `start` on, start + steps <= there. What lies
// behind these steps in its place is left as it is. O(bytes), no allocation, no state; slices of one batch may be
// copied at once, each to a place of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace replaybank::cuts {

constexpr std::int64_t kMarks = 10;
constexpr std::int64_t kEach = 3;  // numbers in a plan for an array

struct Slice {
    std::int64_t place;
    std::int64_t length;
    std::int64_t start;
    std::int64_t steps;
    std::int64_t there;

    bool good() const {
        return place >= 0 && start >= 0 && steps > 0 && steps <= length && steps <= there && start <= there - steps;
    }
    // Steps of which the next one is known: all but the last of an episode.
    std::int64_t known() const { return start + steps < there ? steps : steps - 1; }
};

// Steps that an array must have: those of the slice, and one more where there is one and "next" wants it.
inline std::int64_t wanted(const std::int64_t* array, const Slice& slice) {
    return array[1] == 0 ? slice.steps : slice.known() + 1;
}

// One array, of as many steps as `wanted` says. The next of the last step of an episode is zero.
inline void copy(const std::int64_t* array, const Slice& slice, const void* from) {
    const auto bytes = static_cast<std::size_t>(array[2]);
    const auto at = static_cast<std::size_t>(slice.place * slice.length) * bytes;
    const auto steps = static_cast<std::size_t>(slice.steps) * bytes;
    if (steps == 0) return;  // values without numbers have no address to speak of
    std::memcpy(reinterpret_cast<char*>(array[0]) + at, from, steps);
    if (array[1] == 0) return;
    char* next = reinterpret_cast<char*>(array[1]) + at;
    const auto known = static_cast<std::size_t>(slice.known()) * bytes;
    if (known != 0) std::memcpy(next, static_cast<const char*>(from) + bytes, known);
    std::memset(next + known, 0, steps - known);
}

// What follows from where the slice lies: a slice ends, as truncated, where the episode may not, and only an episode
// that is terminated is so at its end.
inline void mark(const std::int64_t* plan, const Slice& slice, std::int32_t number, bool terminated) {
    const std::int64_t at = slice.place * slice.length;
    const auto steps = static_cast<std::size_t>(slice.steps);
    auto* step = reinterpret_cast<std::int32_t*>(plan[0]) + at;
    auto* episode = reinterpret_cast<std::int32_t*>(plan[1]) + at;
    for (std::int64_t k = 0; k < slice.steps; ++k) {
        step[k] = static_cast<std::int32_t>(slice.start + k);
        episode[k] = number;
    }
    unsigned char* flags[kMarks];
    for (std::int64_t entry = 2; entry < kMarks; ++entry) {
        flags[entry] = reinterpret_cast<unsigned char*>(plan[entry]) + at;
        std::memset(flags[entry], entry == 9 ? 1 : 0, steps);
    }
    const std::int64_t last = slice.steps - 1;
    const bool end = slice.start + slice.steps == slice.there;
    flags[2][0] = slice.start == 0;
    flags[6][last] = 1;
    flags[7][last] = end && terminated;
    flags[8][last] = 1;
    flags[9][last] = !end;
}

}  // namespace replaybank::cuts
