// Robot episodes as they lie in RLDS files: TFRecord framing and tf.train.Example payloads.
//
// Reading happens in stages so that nothing is allocated before the bytes that ask for it were checked:
//
//   scan_records    which whole records lie in a block of a file              O(records)
//   index_example   every feature of a payload: name, kind, count, place      O(payload)
//   match_example   the same for a known set of names, in their order         O(payload + features log names)
//   decode_numbers  one float or int64 feature into an array of some dtype    O(its bytes)
//   decode_bytes    one bytes feature as (offset, length) pairs               O(its entries)
//   same_bytes      the one string that all of a bytes feature are            O(its bytes)
//   lay_numbers     where in one buffer the numbers of an episode will lie    O(features)
//   fill_numbers    all of them into it                                       O(their bytes)
//
// All are pure functions, allocate nothing, and never read outside [data, data + size) or write more than
// the room they are told of, whatever the bytes say: tests/datasets/openx/sources/test_example.py mutates
// payloads and compares with the plain twin in tests/reference/tfrecord.py.
//
// The bytes follow protobuf's rules:
//   Example  { Features features = 1; }             repeated occurrences merge
//   Features { map<string, Feature> feature = 1; }  of entries with one name the last counts
//   Feature  { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }
//            the last kind seen counts, lists of that kind since the switch merge
//   lists    { repeated value = 1; }                numbers packed or not
// Unknown fields, and known ones with another wire type, are skipped; groups nest kMaxGroupDepth deep at
// most. Checksums are not computed here (a native CRC library does it).

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace replaybank::tfrecord {

using Byte = std::uint8_t;

// ---------------------------------------------------------------------------------------------- framing

// Eight bytes of length, four of their checksum before the payload; four of the payload's behind it.
constexpr std::uint64_t kLengthSize = 8;
constexpr std::uint64_t kHeaderSize = 12;
constexpr std::uint64_t kFooterSize = 4;
// int64 columns of a row: record offset in the block, payload length, CRC of the length, CRC of the payload.
constexpr std::size_t kRecordColumns = 4;

template <class T>
inline T load_little_endian(const Byte* at) {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(at[i]) << (8 * i));
    return value;
}

// Undoes TFRecord's masking: rotate right by 15, add 0xa282ead8.
inline std::uint32_t unmask_crc(std::uint32_t masked) {
    const std::uint32_t rotated = masked - 0xa282ead8U;
    return (rotated >> 17) | (rotated << 15);
}

// Walks whole records from `start` and writes one row for each, `capacity` at most. Lengths are believed
// only as far as the block reaches, so the caller checks each row's length CRC in order, before the payload.
// Returns the number of rows.
inline std::int64_t scan_records(const Byte* data, std::size_t size, std::size_t start, std::int64_t* rows,
                                 std::size_t capacity) {
    std::size_t count = 0;
    std::size_t at = start;
    while (count < capacity && at <= size && size - at >= kHeaderSize + kFooterSize) {
        const auto length = load_little_endian<std::uint64_t>(data + at);
        const std::uint64_t room = size - at - kHeaderSize - kFooterSize;
        if (length > room) break;
        const auto payload = static_cast<std::size_t>(length);
        std::int64_t* row = rows + count * kRecordColumns;
        row[0] = static_cast<std::int64_t>(at);
        row[1] = static_cast<std::int64_t>(length);
        row[2] = unmask_crc(load_little_endian<std::uint32_t>(data + at + 8));
        row[3] = unmask_crc(load_little_endian<std::uint32_t>(data + at + kHeaderSize + payload));
        ++count;
        at += kHeaderSize + payload + kFooterSize;
    }
    return static_cast<std::int64_t>(count);
}

// --------------------------------------------------------------------------------------------- wire format

constexpr int kMaxGroupDepth = 100;  // protobuf's own default limit of recursion

enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kGroupStart = 3, kGroupEnd = 4, kFixed32 = 5 };

struct Span {
    const Byte* at;
    const Byte* end;
    std::size_t size() const { return static_cast<std::size_t>(end - at); }
};

// Ten bytes at most; bits beyond the 64th are dropped, as protobuf does. On failure `from.at` stays.
inline bool read_varint(Span& from, std::uint64_t& value) {
    if (from.at != from.end && *from.at < 0x80U) {  // nearly all of them
        value = *from.at++;
        return true;
    }
    std::uint64_t result = 0;
    const Byte* at = from.at;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (at == from.end) return false;
        const Byte byte = *at++;
        result |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
        if (byte < 0x80U) {
            from.at = at;
            value = result;
            return true;
        }
    }
    return false;
}

struct Field {
    std::uint32_t number = 0;
    std::uint32_t wire = 0;
    std::uint64_t value = 0;     // of a varint
    Span body{nullptr, nullptr}; // of fixed-size and length-delimited fields
};

inline bool read_tag(Span& from, Field& field) {
    const Byte* before = from.at;
    std::uint64_t tag = 0;
    if (!read_varint(from, tag) || from.at - before > 5 || tag > 0xffffffffU || tag < 8) {
        from.at = before;
        return false;
    }
    field.number = static_cast<std::uint32_t>(tag) >> 3;
    field.wire = static_cast<std::uint32_t>(tag) & 7U;
    return true;
}

inline bool take(Span& from, std::uint64_t length, Field& field) {
    if (length > from.size()) return false;
    field.body = Span{from.at, from.at + length};
    from.at += length;
    return true;
}

// Content of a field whose tag was read; groups are left to skip_group.
inline bool read_content(Span& from, Field& field) {
    std::uint64_t length = 0;
    switch (field.wire) {
        case kVarint: return read_varint(from, field.value);
        case kFixed64: return take(from, 8, field);
        case kFixed32: return take(from, 4, field);
        case kBytes: return read_varint(from, length) && take(from, length, field);
        default: return false;
    }
}

inline bool skip_group(Span& from, std::uint32_t number) {
    std::uint32_t open[kMaxGroupDepth];
    int depth = 0;
    open[depth++] = number;
    while (depth > 0) {
        Field field;
        if (from.at == from.end || !read_tag(from, field)) return false;
        if (field.wire == kGroupStart) {
            if (depth == kMaxGroupDepth) return false;
            open[depth++] = field.number;
        } else if (field.wire == kGroupEnd) {
            if (open[--depth] != field.number) return false;
        } else if (!read_content(from, field)) {
            return false;
        }
    }
    return true;
}

// One whole field. False when malformed: `from.at` is then near the offending byte.
inline bool next_field(Span& from, Field& field) {
    if (!read_tag(from, field)) return false;
    if (field.wire == kGroupStart) return skip_group(from, field.number);
    return read_content(from, field);
}

// Calls visit(field) -> bool for every field of a message. `bad` becomes the place of the first fault.
template <class Visit>
inline bool each_field(Span message, const Byte*& bad, Visit visit) {
    while (message.at != message.end) {
        Field field;
        if (!next_field(message, field)) {
            bad = message.at;
            return false;
        }
        if (!visit(field)) return false;
    }
    return true;
}

// ------------------------------------------------------------------------------------------ tf.train.Example

enum Kind : std::int64_t { kNone = 0, kBytesList = 1, kFloatList = 2, kInt64List = 3 };

// What a list gives, one call an occurrence: packed numbers in one span, or single values.
//   bool floats(Span little_endian)   bool ints(Span varints)   bool integer(uint64)   bool bytes(Span)
template <class Sink>
inline bool walk_list(std::int64_t kind, Span list, Sink& sink, const Byte*& bad) {
    return each_field(list, bad, [&](const Field& field) {
        if (field.number != 1) return true;
        bool good = true;
        if (kind == kBytesList && field.wire == kBytes) good = sink.bytes(field.body);
        if (kind == kFloatList && (field.wire == kFixed32 || field.wire == kBytes)) good = sink.floats(field.body);
        if (kind == kInt64List && field.wire == kBytes) good = sink.ints(field.body);
        if (kind == kInt64List && field.wire == kVarint) good = sink.integer(field.value);
        if (!good) bad = field.body.at != nullptr ? field.body.at : list.at;
        return good;
    });
}

// A map entry: its name into `name`, its lists to the sink; sink.begin(kind) is called when the kind
// switches and drops what came before.
template <class Sink>
inline bool walk_entry(Span entry, Span& name, Sink& sink, const Byte*& bad) {
    std::int64_t kind = kNone;
    name = Span{entry.at, entry.at};
    return each_field(entry, bad, [&](const Field& part) {
        if (part.wire != kBytes) return true;
        if (part.number == 1) name = part.body;
        if (part.number != 2) return true;
        return each_field(part.body, bad, [&](const Field& list) {
            if (list.wire != kBytes || list.number < kBytesList || list.number > kInt64List) return true;
            if (kind != list.number) {
                kind = list.number;
                sink.begin(kind);
            }
            return walk_list(kind, list.body, sink, bad);
        });
    });
}

// Calls visit(entry span) -> bool for every entry of the feature map.
template <class Visit>
inline bool each_entry(Span payload, const Byte*& bad, Visit visit) {
    return each_field(payload, bad, [&](const Field& features) {
        if (features.number != 1 || features.wire != kBytes) return true;
        return each_field(features.body, bad, [&](const Field& entry) {
            if (entry.number != 1 || entry.wire != kBytes) return true;
            return visit(entry.body);
        });
    });
}

// Whether eight varints of a byte each come next: true of nearly all flags and small numbers.
inline bool eight_small(Span from) {
    if (from.size() < 8) return false;
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, from.at, sizeof bytes);
    return (bytes & 0x8080808080808080U) == 0;
}

// Counts values and checks that all of them can be decoded.
struct Counter {
    std::int64_t kind = kNone;
    std::int64_t count = 0;

    void begin(std::int64_t switched) {
        kind = switched;
        count = 0;
    }
    bool bytes(Span) {
        ++count;
        return true;
    }
    bool floats(Span packed) {
        if (packed.size() % 4 != 0) return false;
        count += static_cast<std::int64_t>(packed.size() / 4);
        return true;
    }
    bool integer(std::uint64_t) {
        ++count;
        return true;
    }
    bool ints(Span packed) {
        unsigned run = 0;
        std::int64_t found = 0;
        for (const Byte* at = packed.at; at != packed.end; ++at) {
            if (run == 0 && eight_small(Span{at, packed.end})) {
                found += 8;
                at += 7;
            } else if (*at < 0x80U) {
                ++found;
                run = 0;
            } else if (++run == 10) {
                return false;
            }
        }
        count += found;
        return run == 0;
    }
};

// int64 columns: kind, number of values, offset and length of the map entry in the payload.
constexpr std::size_t kMatchColumns = 4;
// Before them: offset and length of the name.
constexpr std::size_t kIndexColumns = 6;

inline void describe(const Byte* data, Span entry, const Counter& found, std::int64_t* row) {
    row[0] = found.kind;
    row[1] = found.count;
    row[2] = entry.at - data;
    row[3] = static_cast<std::int64_t>(entry.size());
}

// Position of a malformed byte p as a status: -1 - p.
inline std::int64_t malformed(const Byte* data, const Byte* bad) {
    return -1 - static_cast<std::int64_t>(bad != nullptr ? bad - data : 0);
}

// Writes a row a map entry, in payload order, repeated names included; `capacity` rows at most. Returns how
// many entries there are (call again with more room), or -1 - offset when the payload is malformed.
inline std::int64_t index_example(const Byte* data, std::size_t size, std::int64_t* rows, std::size_t capacity) {
    const Byte* bad = nullptr;
    std::size_t count = 0;
    const bool good = each_entry(Span{data, data + size}, bad, [&](Span entry) {
        Counter found;
        Span name{};
        if (!walk_entry(entry, name, found, bad)) return false;
        if (count < capacity) {
            std::int64_t* row = rows + count * kIndexColumns;
            row[0] = name.at - data;
            row[1] = static_cast<std::int64_t>(name.size());
            describe(data, entry, found, row + 2);
        }
        ++count;
        return true;
    });
    return good ? static_cast<std::int64_t>(count) : malformed(data, bad);
}

// Names wanted: `count` byte strings, ascending (memcmp, shorter first), laid end to end; name i is
// [offsets[i], offsets[i + 1]).
struct Names {
    const Byte* text;
    const std::int64_t* offsets;
    std::size_t count;

    int compare(std::size_t i, Span name) const {
        const auto length = static_cast<std::size_t>(offsets[i + 1] - offsets[i]);
        const std::size_t common = length < name.size() ? length : name.size();
        const int order = common == 0 ? 0 : std::memcmp(text + offsets[i], name.at, common);
        if (order != 0) return order;
        return length < name.size() ? -1 : (length > name.size() ? 1 : 0);
    }

    std::size_t find(Span name) const {
        std::size_t low = 0;
        std::size_t high = count;
        while (low < high) {
            const std::size_t middle = low + (high - low) / 2;
            const int order = compare(middle, name);
            if (order == 0) return middle;
            if (order < 0) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return count;
    }
};

// Writes one row a wanted name, in their order, zeros where the payload has none. Returns the number of
// entries that no name asked for, or -1 - offset when the payload is malformed.
inline std::int64_t match_example(const Byte* data, std::size_t size, const Names& names, std::int64_t* rows) {
    std::memset(rows, 0, names.count * kMatchColumns * sizeof(std::int64_t));
    const Byte* bad = nullptr;
    std::int64_t others = 0;
    const bool good = each_entry(Span{data, data + size}, bad, [&](Span entry) {
        Counter found;
        Span name{};
        if (!walk_entry(entry, name, found, bad)) return false;
        const std::size_t i = names.find(name);
        if (i == names.count) {
            ++others;
        } else {
            describe(data, entry, found, rows + i * kMatchColumns);
        }
        return true;
    });
    return good ? others : malformed(data, bad);
}

// ---------------------------------------------------------------------------------------------- decoding

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
