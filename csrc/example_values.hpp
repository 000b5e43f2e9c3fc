// The values of a tf.train.Example's features, once tfrecord.hpp has told where they lie and how many they are:
//
//   decode_numbers  one float or int64 feature into an array of some dtype    O(its bytes)
//   decode_bytes    one bytes feature as (offset, length) pairs               O(its entries)
//   same_bytes      the one string that all of a bytes feature are            O(its bytes)
//   lay_numbers     where in one buffer the numbers of an episode will lie    O(features)
//   fill_numbers    all of them into it                                       O(their bytes)
//
// Pure functions that allocate nothing and write no more than the room they are told of, as there.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tfrecord.hpp"

namespace replaybank::tfrecord {

// Round to nearest, ties to even; too large becomes infinity, NaN stays NaN with its top payload bits.
inline std::uint16_t half_bits(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) {
        const std::uint32_t payload = (magnitude >> 13) & 0x3ffU;
        return static_cast<std::uint16_t>(sign | 0x7c00U | (payload != 0 ? payload : 1U));
    }
    if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
    if (magnitude < 0x33000000U) return sign;  // below half of the smallest half
    if (magnitude < 0x38800000U) {             // subnormal half
        const std::uint32_t shift = 126U - (magnitude >> 23);
        const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
        const std::uint32_t kept = mantissa >> shift;
        const std::uint32_t rest = mantissa & ((1U << shift) - 1U);
        const std::uint32_t tie = 1U << (shift - 1U);
        return static_cast<std::uint16_t>(sign | (kept + (rest > tie || (rest == tie && (kept & 1U) != 0) ? 1U : 0U)));
    }
    const std::uint32_t rebiased = magnitude - 0x38000000U;
    const std::uint32_t rounded = rebiased + 0xfffU + ((rebiased >> 13) & 1U);
    return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

struct Half {
    std::uint16_t bits;
};

template <class T>
inline T from_float(float value) {
    if constexpr (std::is_same_v<T, Half>) {
        return Half{half_bits(value)};
    } else {
        return static_cast<T>(value);
    }
}

// Results of decode_numbers below zero.
constexpr std::int64_t kMismatch = std::numeric_limits<std::int64_t>::min();  // not what the index said

// Shared by the sinks that write: never more than `room` values; whatever a switch of kinds drops is undone.
template <class T>
struct Writer {
    T* out;
    std::size_t room;
    std::int64_t wanted;
    std::size_t count = 0;
    bool active = false;
    bool overflow = false;
    std::int64_t unfit = -1;  // position of the first value that T cannot hold

    void begin(std::int64_t kind) {
        active = kind == wanted;
        count = 0;
        overflow = false;
        unfit = -1;
    }
    void put(T value) {
        if (count < room) {
            out[count] = value;
        } else {
            overflow = true;
        }
        ++count;
    }
    bool bytes(Span) { return true; }
    bool floats(Span) { return true; }
    bool ints(Span) { return true; }
    bool integer(std::uint64_t) { return true; }

    std::int64_t status() const {
        if (!active || overflow || count != room) return kMismatch;
        return unfit >= 0 ? -1 - unfit : static_cast<std::int64_t>(count);
    }
};

template <class T>
struct FloatWriter : Writer<T> {
    bool floats(Span packed) {
        const std::size_t values = packed.size() / 4;
        if (values > this->room - (this->count < this->room ? this->count : this->room)) {
            this->overflow = true;
            return true;
        }
        if constexpr (std::is_same_v<T, float>) {
            if (values != 0) std::memcpy(this->out + this->count, packed.at, values * sizeof(float));
            this->count += values;
        } else {
            for (std::size_t i = 0; i < values; ++i) {
                float value = 0;
                std::memcpy(&value, packed.at + 4 * i, sizeof value);
                this->put(from_float<T>(value));
            }
        }
        return true;
    }
};

template <class T>
struct IntWriter : Writer<T> {
    bool integer(std::uint64_t raw) {
        if constexpr (std::is_same_v<T, bool>) {
            this->put(raw != 0);
        } else {
            // uint64 values above 2^63 are stored as the negative number with the same bits.
            const auto value = static_cast<std::int64_t>(raw);
            if constexpr (sizeof(T) < 8) {
                if ((value < static_cast<std::int64_t>(std::numeric_limits<T>::min()) ||
                     value > static_cast<std::int64_t>(std::numeric_limits<T>::max())) &&
                    this->unfit < 0) {
                    this->unfit = static_cast<std::int64_t>(this->count);
                }
            }
            this->put(static_cast<T>(raw));
        }
        return true;
    }
    bool ints(Span packed) {
        while (packed.at != packed.end) {
            if (eight_small(packed) && this->count + 8 <= this->room) {
                for (std::size_t i = 0; i < 8; ++i) this->out[this->count + i] = static_cast<T>(packed.at[i]);
                this->count += 8;
                packed.at += 8;
                continue;
            }
            std::uint64_t value = 0;
            if (!read_varint(packed, value)) return false;
            integer(value);
        }
        return true;
    }
};

struct BytesWriter : Writer<std::int64_t> {
    const Byte* data = nullptr;

    bool bytes(Span value) {
        if (2 * count + 1 < room) {
            out[2 * count] = value.at - data;
            out[2 * count + 1] = static_cast<std::int64_t>(value.size());
        } else {
            overflow = true;
        }
        ++count;
        return true;
    }
};

template <class Sink>
inline bool run(Span entry, Sink& sink) {
    const Byte* bad = nullptr;
    Span name{};
    return walk_entry(entry, name, sink, bad);
}

// Compares the strings of a list with its first one.
struct Repeat {
    Span first{nullptr, nullptr};
    std::size_t count = 0;
    bool active = false;
    bool same = true;

    void begin(std::int64_t kind) {
        active = kind == kBytesList;
        count = 0;
        same = true;
    }
    bool bytes(Span value) {
        if (count++ == 0) first = value;
        same = same && value.size() == first.size() &&
               (value.size() == 0 || std::memcmp(value.at, first.at, value.size()) == 0);
        return true;
    }
    bool floats(Span) { return true; }
    bool ints(Span) { return true; }
    bool integer(std::uint64_t) { return true; }
};

inline bool inside(std::size_t size, std::int64_t offset, std::int64_t length) {
    const auto whole = static_cast<std::uint64_t>(size);
    const auto first = static_cast<std::uint64_t>(offset);
    return first <= whole && static_cast<std::uint64_t>(length) <= whole - first;
}

// The string that all `count` strings of an entry are; nowhere where they differ, or are not so many.
inline Span same_bytes(const Byte* data, std::size_t size, std::int64_t offset, std::int64_t length,
                       std::size_t count) {
    Repeat sink;
    if (count == 0 || !inside(size, offset, length) || !run(Span{data + offset, data + offset + length}, sink) ||
        !sink.active || !sink.same || sink.count != count)
        return Span{nullptr, nullptr};
    return sink.first;
}

// Codes of the dtypes that decode_numbers writes; src/replaybank/datasets/openx/sources/example.py has them too.
enum Dtype : int {
    kBool = 0, kInt8, kInt16, kInt32, kInt64, kUint8, kUint16, kUint32, kUint64, kFloat16, kFloat32, kFloat64
};

template <class T>
inline std::int64_t decode_floats(Span entry, void* out, std::size_t count) {
    FloatWriter<T> sink;
    sink.out = static_cast<T*>(out);
    sink.room = count;
    sink.wanted = kFloatList;
    return run(entry, sink) ? sink.status() : kMismatch;
}

template <class T>
inline std::int64_t decode_ints(Span entry, void* out, std::size_t count) {
    IntWriter<T> sink;
    sink.out = static_cast<T*>(out);
    sink.room = count;
    sink.wanted = kInt64List;
    return run(entry, sink) ? sink.status() : kMismatch;
}

// Decodes the entry at [offset, offset + length) of a payload, as index_example or match_example gave it, into
// `count` values of `dtype`: floats from a float list, bool and ints from an int64 list. Returns `count`;
// -1 - i if value i does not fit the dtype (the rest is written); kMismatch if the arguments do not belong
// to the payload.
inline std::int64_t decode_numbers(const Byte* data, std::size_t size, std::int64_t offset, std::int64_t length,
                                   int dtype, void* out, std::size_t count) {
    if (!inside(size, offset, length)) return kMismatch;
    const Span entry{data + offset, data + offset + length};
    switch (dtype) {
        case kBool: return decode_ints<bool>(entry, out, count);
        case kInt8: return decode_ints<std::int8_t>(entry, out, count);
        case kInt16: return decode_ints<std::int16_t>(entry, out, count);
        case kInt32: return decode_ints<std::int32_t>(entry, out, count);
        case kInt64: return decode_ints<std::int64_t>(entry, out, count);
        case kUint8: return decode_ints<std::uint8_t>(entry, out, count);
        case kUint16: return decode_ints<std::uint16_t>(entry, out, count);
        case kUint32: return decode_ints<std::uint32_t>(entry, out, count);
        case kUint64: return decode_ints<std::uint64_t>(entry, out, count);
        case kFloat16: return decode_floats<Half>(entry, out, count);
        case kFloat32: return decode_floats<float>(entry, out, count);
        case kFloat64: return decode_floats<double>(entry, out, count);
        default: return kMismatch;
    }
}

// Bytes of one value of a dtype; 0 of a code that there is not.
inline std::size_t item_size(int dtype) {
    switch (dtype) {
        case kBool: case kInt8: case kUint8: return 1;
        case kInt16: case kUint16: case kFloat16: return 2;
        case kInt32: case kUint32: case kFloat32: return 4;
        case kInt64: case kUint64: case kFloat64: return 8;
        default: return 0;
    }
}

// What is known of a column of numbers before its payload: the row of its entry in what match_example writes, the
// kind of its list, how many numbers a step has (0: they are not counted), and their dtype.
struct Column {
    std::int64_t row;
    std::int64_t kind;
    std::int64_t per_step;
    std::int64_t dtype;
};

constexpr std::int64_t kArenaAlignment = 16;  // what NumPy itself gives

// Writes where each of `count` columns begins in a buffer that they share, -1 for those without numbers, and behind
// these the bytes of all. Returns how many steps they have, 0 where none tells; -1 - i where column i is of another
// kind, has no whole steps, or not as many as those before it.
inline std::int64_t lay_numbers(const std::int64_t* rows, const Column* columns, std::size_t count,
                                std::int64_t* places) {
    std::int64_t steps = 0;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const Column& column = columns[i];
        const std::int64_t* row = rows + static_cast<std::size_t>(column.row) * kMatchColumns;
        const std::int64_t numbers = row[1];
        places[i] = -1;
        if (column.per_step != 0) {
            if (numbers == 0) continue;
            const std::int64_t found = numbers / column.per_step;
            if (row[0] != column.kind || found * column.per_step != numbers || (steps != 0 && found != steps))
                return -1 - static_cast<std::int64_t>(i);
            steps = found;
        }
        places[i] = at;
        const auto bytes = numbers * static_cast<std::int64_t>(item_size(static_cast<int>(column.dtype)));
        at += (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    }
    places[count] = at;
    return steps;
}

// Decodes what lay_numbers laid out. Returns `count`, or the first column whose numbers cannot be had: some do not
// fit the dtype, or the arguments do not belong together.
inline std::size_t fill_numbers(const Byte* data, std::size_t size, const std::int64_t* rows, const Column* columns,
                                std::size_t count, const std::int64_t* places, Byte* out, std::size_t room) {
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t* row = rows + static_cast<std::size_t>(columns[i].row) * kMatchColumns;
        if (places[i] < 0 || row[1] == 0) continue;
        const auto dtype = static_cast<int>(columns[i].dtype);
        const auto numbers = static_cast<std::size_t>(row[1]);
        const auto place = static_cast<std::size_t>(places[i]);
        if (place > room || numbers > (room - place) / (item_size(dtype) + (item_size(dtype) == 0))) return i;
        if (decode_numbers(data, size, row[2], row[3], dtype, out + place, numbers) != row[1]) return i;
    }
    return count;
}

// Writes (offset in the payload, length) of each of `count` byte strings: int64 [count, 2]. Returns `count` or
// kMismatch.
inline std::int64_t decode_bytes(const Byte* data, std::size_t size, std::int64_t offset, std::int64_t length,
                                 std::int64_t* out, std::size_t count) {
    if (!inside(size, offset, length)) return kMismatch;
    BytesWriter sink;
    sink.out = out;
    sink.room = 2 * count;
    sink.wanted = kBytesList;
    sink.data = data;
    if (!run(Span{data + offset, data + offset + length}, sink)) return kMismatch;
    return sink.active && !sink.overflow && sink.count == count ? static_cast<std::int64_t>(count) : kMismatch;
}

}  // namespace replaybank::tfrecord
