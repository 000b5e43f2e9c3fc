// Strings of bytes that lie in one piece of memory, as int64 pairs (offset, length) say.
//
//   spans_starting   how many of the first strings begin alike     O(strings)
//   join_spans       the strings end to end                        O(their bytes)
//
// Pure functions; they never read outside [data, data + size) or write beyond the room they are told of, whatever the
// pairs say: tests/datasets/openx/test_kept_frames.py compares them with what slices of Python give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace replaybank {

inline bool span_inside(const std::int64_t* span, std::size_t size) {
    const auto whole = static_cast<std::uint64_t>(size);
    const auto first = static_cast<std::uint64_t>(span[0]);  // a negative number is a huge one
    return first <= whole && static_cast<std::uint64_t>(span[1]) <= whole - first;
}

// The number of the first string that does not begin with `prefix`, or does not lie inside; `count` if all do.
inline std::int64_t spans_starting(const unsigned char* data, std::size_t size, const std::int64_t* spans,
                                   std::size_t count, const unsigned char* prefix, std::size_t prefix_size) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t* const span = spans + 2 * i;
        if (!span_inside(span, size) || static_cast<std::uint64_t>(span[1]) < prefix_size ||
            (prefix_size != 0 && std::memcmp(data + span[0], prefix, prefix_size) != 0))
            return static_cast<std::int64_t>(i);
    }
    return static_cast<std::int64_t>(count);
}

// Copies the strings to `out`. Returns how many bytes they are, or -1 where one lies outside or they do not fit into
// `room`: some may have been copied then.
inline std::int64_t join_spans(const unsigned char* data, std::size_t size, const std::int64_t* spans,
                               std::size_t count, unsigned char* out, std::size_t room) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t* const span = spans + 2 * i;
        if (!span_inside(span, size)) return -1;
        const auto length = static_cast<std::size_t>(span[1]);
        if (length > room - at) return -1;
        if (length != 0) std::memcpy(out + at, data + span[0], length);
        at += length;
    }
    return static_cast<std::int64_t>(at);
}

}  // namespace replaybank
