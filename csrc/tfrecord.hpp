// Robot episodes as they lie in RLDS files: TFRecord framing and tf.train.Example payloads.
//
// Reading happens in stages so that nothing is allocated before the bytes that ask for it were checked:
//
//   scan_records    which whole records lie in a block of a file              O(records)
//   index_example   every feature of a payload: name, kind, count, place      O(payload)
//   match_example   the same for a known set of names, in their order         O(payload + features log names)
//
// The values of what was found are read by example_values.hpp.
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

}  // namespace replaybank::tfrecord
