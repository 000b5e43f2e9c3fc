// The trajectory index: which slots of a storage are the last step of a trajectory, which of those
// trajectories are long enough, and uniform draws from them. Pure functions over arrays that Python owns.
//
// Layout. The slots of one column (environment) are `padded` bits, a multiple of 64; slot (row, column) is bit
// `column * padded + row`. A set of slots is a ranked bitset:
//   words   uint64 [n_words]: the bits; n_words is a multiple of 8, bits that are no slot are 0.
//   counts  uint32: level 0 counts the set bits of 8 words (one cache line), every further level sums 16
//           entries of the level below (one cache line), up to a level of one entry, the number of set bits.
//           The levels lie behind each other, each padded with zeros to a multiple of 16 entries;
//           `ranked_counts_size(n_words)` entries in all.
// Setting a bit, the nearest set bit before or after a bit, and the k-th set bit are O(levels): for 10^9 slots
// there are 7. A set may hold up to 2^32 - 1 bits.
//
// Two sets are kept. `last`: the slot is the last valid step of its trajectory. `eligible`, a subset: the
// trajectory that ends there has at least `min_length` steps. The valid rows [0, length) of a column are a
// circle: the trajectory that ends at a set bit begins behind the set bit before it, across row length - 1 if
// need be. Where the storage does not go on at row 0, row length - 1 is a last step, so nothing lies across.
//
// Nothing here throws or keeps state. Inputs are checked in Python; counts and rows are taken as int64.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace replaybank::trajectories {

using i64 = std::int64_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using u8 = std::uint8_t;

inline int ones(u64 word) { return __builtin_popcountll(word); }
inline int lowest(u64 word) { return __builtin_ctzll(word); }
inline int highest(u64 word) { return 63 - __builtin_clzll(word); }

// Bits lo .. hi - 1 of a word, 0 <= lo < hi <= 64.
inline u64 mask_between(i64 lo, i64 hi) { return (~u64{0} << lo) & (~u64{0} >> (64 - hi)); }

// floor(random * choices / 2^63) for a random in [0, 2^63): every choice is possible, none is favoured by
// more than choices / 2^63.
inline i64 scaled(i64 random, i64 choices) {
    const u64 a = static_cast<u64>(random) & ~(u64{1} << 63), b = static_cast<u64>(choices);
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 u128;
    return static_cast<i64>(static_cast<u64>((static_cast<u128>(a) * b) >> 63));
#else
    const u64 a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    const u64 low = a0 * b0, mid = a1 * b0 + (low >> 32), mid2 = a0 * b1 + (mid & 0xffffffffu);
    const u64 high = a1 * b1 + (mid >> 32) + (mid2 >> 32), rest = (mid2 << 32) | (low & 0xffffffffu);
    return static_cast<i64>((high << 1) | (rest >> 63));
#endif
}

class RankedBits {
  public:
    RankedBits(u64* words, u32* counts, i64 n_words) : words_(words) {
        i64 size = (n_words + 7) / 8;
        for (depth_ = 0; depth_ < kMaxLevels;) {
            levels_[depth_++] = counts;
            if (size <= 1) break;
            counts += (size + 15) / 16 * 16;
            size = (size + 15) / 16;
        }
    }

    static i64 counts_size(i64 n_words) {
        i64 size = (n_words + 7) / 8, total = 0;
        while (true) {
            total += (size + 15) / 16 * 16;
            if (size <= 1) return total > 16 ? total : 16;
            size = (size + 15) / 16;
        }
    }

    i64 count() const { return levels_[depth_ - 1][0]; }

    u64 word(i64 index) const { return words_[index]; }

    // Bits of `mask` in a word become those of `bits`. O(levels), O(1) if nothing changes.
    void replace(i64 index, u64 mask, u64 bits) {
        const u64 before = words_[index], after = (before & ~mask) | (bits & mask);
        if (before == after) return;
        words_[index] = after;
        const u32 change = static_cast<u32>(ones(after)) - static_cast<u32>(ones(before));  // wraps, on purpose
        if (change == 0) return;
        i64 node = index >> 3;
        for (int level = 0; level < depth_; ++level, node >>= 4) levels_[level][node] += change;
    }

    void assign(i64 bit, bool value) {
        const u64 mask = u64{1} << (bit & 63);
        replace(bit >> 6, mask, value ? mask : 0);
    }

    // The last set bit at or before `bit`, -1 if there is none.
    i64 at_or_before(i64 bit) const {
        if (bit < 0) return -1;
        i64 node = bit >> 6;
        const u64 here = words_[node] & mask_between(0, (bit & 63) + 1);
        if (here) return (node << 6) + highest(here);
        while (node & 7)
            if (words_[--node]) return (node << 6) + highest(words_[node]);
        node >>= 3;
        for (int level = 0; level < depth_; ++level, node >>= 4)
            while (node & 15)
                if (levels_[level][--node]) return last_under(level, node);
        return -1;
    }

    // The first set bit at or after `bit`, -1 if there is none.
    i64 at_or_after(i64 bit) const {
        i64 node = bit >> 6;
        const u64 here = words_[node] & mask_between(bit & 63, 64);
        if (here) return (node << 6) + lowest(here);
        while (++node & 7)
            if (words_[node]) return (node << 6) + lowest(words_[node]);
        node = (node - 1) >> 3;
        for (int level = 0; level + 1 < depth_; ++level, node >>= 4) {
            while (++node & 15)
                if (levels_[level][node]) return first_under(level, node);
            --node;
        }
        return -1;
    }

    // The set bit before which `rank` others are set; 0 <= rank < count().
    i64 select(i64 rank) const {
        u32 left = static_cast<u32>(rank);
        i64 node = 0;
        for (int level = depth_ - 1; level-- > 0;) {
            node <<= 4;
            while (left >= levels_[level][node]) left -= levels_[level][node++];
        }
        node <<= 3;
        for (u32 here; left >= (here = static_cast<u32>(ones(words_[node]))); ++node) left -= here;
        u64 word = words_[node];
        for (; left; --left) word &= word - 1;
        return (node << 6) + lowest(word);
    }

  private:
    i64 last_under(int level, i64 node) const {
        while (level-- > 0) {
            node = (node << 4) + 15;
            while (!levels_[level][node]) --node;
        }
        node = (node << 3) + 7;
        while (!words_[node]) --node;
        return (node << 6) + highest(words_[node]);
    }

    i64 first_under(int level, i64 node) const {
        while (level-- > 0) {
            node <<= 4;
            while (!levels_[level][node]) ++node;
        }
        node <<= 3;
        while (!words_[node]) ++node;
        return (node << 6) + lowest(words_[node]);
    }

    static constexpr int kMaxLevels = 16;
    u64* words_;
    u32* levels_[kMaxLevels] = {};
    int depth_;
};

// Steps from behind `previous` to `row` on the circle of `length` rows; the whole circle if they are one.
inline i64 steps_between(i64 previous, i64 row, i64 length) {
    return row > previous ? row - previous : row - previous + length;
}

// Row of the last step before `row` on the circle of column `base / padded`, -1 if the column has none.
inline i64 circle_before(const RankedBits& last, i64 base, i64 row, i64 length) {
    i64 bit = last.at_or_before(base + row - 1);
    if (bit < base) bit = last.at_or_before(base + length - 1);
    return bit < base ? -1 : bit - base;
}

// The same at or after `row`, which may equal `length`.
inline i64 circle_after(const RankedBits& last, i64 base, i64 row, i64 length) {
    i64 bit = row < length ? last.at_or_after(base + row) : -1;
    if (bit < 0 || bit >= base + length) bit = last.at_or_after(base);
    return bit < 0 || bit >= base + length ? -1 : bit - base;
}

// The two sets, and the shape of the storage they describe.
struct Index {
    RankedBits last, eligible;
    i64 padded, columns, length, min_length;

    // Eligibility of all trajectories that end in rows [begin, end), `previous` being the last step before.
    // Gives the last step in them, `previous` if there is none. O(rows / 64 + trajectories).
    i64 evaluate(i64 base, i64 begin, i64 end, i64 previous) {
        for (i64 row = begin; row < end;) {
            const i64 word = (base + row) >> 6, first = row & ~i64{63};
            const i64 stop = first + 64 < end ? first + 64 : end;
            const u64 mask = mask_between(row - first, stop - first);
            u64 chosen = 0;
            for (u64 rest = last.word(word) & mask; rest; rest &= rest - 1) {
                const i64 here = first + lowest(rest);
                if (steps_between(previous, here, length) >= min_length) chosen |= rest & (~rest + 1);
                previous = here;
            }
            eligible.replace(word, mask, chosen);
            row = stop;
        }
        return previous;
    }
};

// Flags of `n` (at most 64) rows of one column as bits; row k's flag is flags[k * stride], cut of the row behind
// it cuts[k + 1] (none with a null pointer). Any byte but 0 is true: a bool made by viewing other bytes holds such.
inline u64 pack(const u8* flags, i64 stride, const u8* cuts, i64 n) {
    u64 bits = 0;
    i64 k = 0;
    if (stride == 1) {
        for (; k + 8 <= n; k += 8) {
            u64 bytes = 0;
            for (int j = 0; j < 8; ++j) bytes |= static_cast<u64>(flags[k + j]) << (8 * j);
            if (cuts)
                for (int j = 0; j < 8; ++j) bytes |= static_cast<u64>(cuts[k + j + 1]) << (8 * j);
            // Every byte but 0 becomes 1: the sum carries into its highest bit.
            const u64 low = 0x7f7f7f7f7f7f7f7fu;
            bytes = (((bytes & low) + low) | bytes) >> 7 & 0x0101010101010101u;
            // Eight bytes of 0 or 1 become eight bits: the product gathers them in its highest byte.
            bits |= (bytes * 0x0102040810204080u >> 56) << k;
        }
    }
    for (; k < n; ++k) bits |= static_cast<u64>((flags[k * stride] | (cuts ? cuts[k + 1] : 0)) != 0) << k;
    return bits;
}

// The signals of rows start .. start + count - 1 (modulo rows) were read: brings both sets up to date.
//   flags    uint8 [count, columns], 0 or not: a trajectory ends with this step. One row is `step` bytes behind the
//            one before it, `columns` if they lie side by side.
//   before   uint8 [columns] or null: the same for the row before `start`, where it may have changed.
//   cut      uint8 [rows] or null (nothing is cut): the row does not continue the one before it.
// A row is a last step if its flag is set, the next row is cut from it, or there is none (row length - 1 < rows - 1).
// Gives whether the run lies within the valid rows, and these within the storage; else nothing is done.
// O(count / 64 + trajectories touched) a column, and the reading of the flags.
inline bool apply(Index& index, i64 rows, i64 start, i64 count, const u8* flags, const u8* before, const u8* cut,
                  i64 step) {
    const i64 length = index.length, columns = index.columns;
    if (rows > index.padded || length < 0 || length > rows || start < 0 || count < 0 || count > length) return false;
    if (start >= rows || (start > length - count && length < rows)) return false;
    if (count == 0) return true;
    const i64 tail = start + count > rows ? start + count - rows : 0;  // rows [0, tail) belong to the run as well
    const i64 end = start + count - tail;
    const bool has_before = count < length && (start > 0 || length == rows) && (before || (cut && cut[start]));
    const i64 row_before = start > 0 ? start - 1 : rows - 1;
    for (i64 column = 0; column < columns; ++column) {
        const i64 base = column * index.padded;
        const auto mark = [&](i64 from, i64 to, const u8* flag) {
            for (i64 row = from; row < to;) {
                const i64 first = row & ~i64{63}, stop = first + 64 < to ? first + 64 : to;
                // The row behind the last one of the storage is row 0, which lies elsewhere in `cut`.
                const i64 plain = stop == rows ? stop - 1 : stop;
                u64 bits = plain > row ? pack(flag, step, cut ? cut + row : nullptr, plain - row) : 0;
                if (stop == rows) {
                    const bool ends = flag[(plain - row) * step] || (cut && cut[0]);
                    bits |= static_cast<u64>(ends) << (plain - row);
                }
                if (stop == length && length < rows) bits |= u64{1} << (length - 1 - row);
                index.last.replace((base + row) >> 6, mask_between(row - first, stop - first), bits << (row - first));
                flag += (stop - row) * step;
                row = stop;
            }
        };
        mark(start, end, flags + column);
        mark(0, tail, flags + (end - start) * step + column);
        if (has_before) index.last.assign(base + row_before, (before && before[column]) || (cut && cut[start]));

        i64 previous = circle_before(index.last, base, has_before ? row_before : start, length);
        if (has_before) previous = index.evaluate(base, row_before, row_before + 1, previous);
        previous = index.evaluate(base, start, end, previous);
        previous = index.evaluate(base, 0, tail, previous);
        const i64 next = circle_after(index.last, base, tail ? tail : end, length);
        if (next >= 0) index.evaluate(base, next, next + 1, previous);
    }
    return true;
}

// Where an identity changes from one row to the next: end flags for `apply`. Identities are compared as bytes.
//   values  count * columns identities of `bytes` bytes each, rows behind each other.
//   after   columns identities, those of the row behind the last one; null: the last row's flags are 0.
//   flags   uint8 [count, columns], written.
inline void changes(const u8* values, i64 count, i64 columns, i64 bytes, const u8* after, u8* flags) {
    const i64 row = columns * bytes, n = (count - 1) * columns;
    const auto size = static_cast<std::size_t>(bytes);
    if (bytes == 8) {
        for (i64 k = 0; k < n; ++k) {
            u64 here, next;
            std::memcpy(&here, values + 8 * k, 8);
            std::memcpy(&next, values + 8 * k + row, 8);
            flags[k] = here != next;
        }
    } else {
        for (i64 k = 0; k < n; ++k) flags[k] = std::memcmp(values + k * bytes, values + k * bytes + row, size) != 0;
    }
    for (i64 k = 0; k < columns; ++k)
        flags[n + k] = after && std::memcmp(values + (n + k) * bytes, after + k * bytes, size) != 0;
}

// The same for the identities of one column where they are stored: that of row r is at values + r * step. Flags of the
// row before `start` and of rows start .. start + count - 1 (modulo rows), count + 1 in all; the last row's is 0
// unless `goes_on` says that the row behind it continues it.
inline void changes_in_place(const u8* values, i64 step, i64 bytes, i64 rows, i64 start, i64 count, bool goes_on,
                             u8* flags) {
    const auto size = static_cast<std::size_t>(bytes);
    const u8* here = values + (start > 0 ? start - 1 : rows - 1) * step;
    for (i64 k = 0; k <= count; ++k) {
        const i64 row = start + k < rows ? start + k : start + k - rows;
        const u8* next = values + row * step;
        if (bytes == 4) {
            u32 a, b;
            std::memcpy(&a, here, 4);
            std::memcpy(&b, next, 4);
            flags[k] = a != b;
        } else if (bytes == 8) {
            u64 a, b;
            std::memcpy(&a, here, 8);
            std::memcpy(&b, next, 8);
            flags[k] = a != b;
        } else {
            flags[k] = std::memcmp(here, next, size) != 0;
        }
        here = next;
    }
    if (!goes_on) flags[count] = 0;
}

// `count` values of `bytes` bytes each, `stride` bytes apart, copied side by side. O(count * bytes).
inline void copy_spread(const u8* from, i64 stride, i64 bytes, i64 count, u8* to) {
    if (bytes == 1) {
        for (i64 k = 0; k < count; ++k) to[k] = from[k * stride];
        return;
    }
    const auto size = static_cast<std::size_t>(bytes);
    for (i64 k = 0; k < count; ++k) std::memcpy(to + k * bytes, from + k * stride, size);
}

// Evaluates all trajectories anew, after `min_length` has changed. O(slots / 64 + trajectories).
inline void evaluate_all(Index& index) {
    for (i64 column = 0; column < index.columns; ++column) {
        const i64 base = column * index.padded;
        index.evaluate(base, 0, index.length, circle_before(index.last, base, 0, index.length));
    }
}

// Shortest and longest trajectory: out[0], out[1]; 0 and 0 if there is none. O(slots / 64 + trajectories).
inline void length_range(const Index& index, i64* out) {
    out[0] = out[1] = 0;
    for (i64 column = 0; column < index.columns; ++column) {
        const i64 base = column * index.padded;
        i64 previous = circle_before(index.last, base, 0, index.length);
        if (previous < 0) continue;
        for (i64 bit = index.last.at_or_after(base); bit >= 0 && bit < base + index.length;) {
            const i64 steps = steps_between(previous, bit - base, index.length);
            if (out[0] == 0 || steps < out[0]) out[0] = steps;
            if (steps > out[1]) out[1] = steps;
            previous = bit - base;
            bit = bit + 1 < index.columns * index.padded ? index.last.at_or_after(bit + 1) : -1;
        }
    }
}

struct Trajectory {
    i64 column, first, steps;
};

inline Trajectory eligible_at(const Index& index, i64 rank) {
    const i64 bit = index.eligible.select(rank), column = bit / index.padded;
    const i64 base = column * index.padded, row = bit - base;
    const i64 previous = circle_before(index.last, base, row, index.length);
    const i64 first = previous + 1 < index.length ? previous + 1 : 0;
    return {column, first, steps_between(previous, row, index.length)};
}

// The eligible trajectories of the given ranks (their order: column, then last row). Gives the position of the
// first rank out of range, -1 if all are good. O(levels) each.
//   ranks int64 [n]; columns, first, steps int64 [n], written.
inline i64 nth(const Index& index, const i64* ranks, i64 n, i64* columns, i64* first, i64* steps) {
    const i64 count = index.eligible.count();
    for (i64 k = 0; k < n; ++k) {
        if (ranks[k] < 0 || ranks[k] >= count) return k;
        const Trajectory found = eligible_at(index, ranks[k]);
        columns[k] = found.column, first[k] = found.first, steps[k] = found.steps;
    }
    return -1;
}

// A slice of each of n trajectories: a window of `slice_len` steps whose begin is uniform over those that lie in the
// trajectory, or stick out of it by at most `left` steps before and `right` behind; what sticks out is cut.
// A trajectory shorter than the window is taken whole. Gives the number of steps in all slices.
//   randoms int64, one every `stride`, in [0, 2^63); first, steps int64 [n]: trajectories in, slices out.
inline i64 cut_windows(const i64* randoms, i64 stride, i64 n, i64 slice_len, i64 left, i64 right, i64 length,
                       i64* first, i64* steps) {
    i64 total = 0;
    for (i64 k = 0; k < n; ++k) {
        if (steps[k] >= slice_len) {
            const i64 at = scaled(randoms[k * stride], steps[k] - slice_len + 1 + left + right) - left;
            const i64 begin = at > 0 ? at : 0, stop = at + slice_len < steps[k] ? at + slice_len : steps[k];
            first[k] += begin;
            if (first[k] >= length) first[k] -= length;
            steps[k] = stop - begin;
        }
        total += steps[k];
    }
    return total;
}

// n slices with replacement: trajectories uniform among the eligible ones, windows as above. Gives the number of
// steps, 0 if no trajectory is eligible. O(levels) each.
//   randoms int64 [n, 2] in [0, 2^63); columns, first, steps int64 [n], written.
inline i64 draw(const Index& index, const i64* randoms, i64 n, i64 slice_len, i64 left, i64 right, i64* columns,
                i64* first, i64* steps) {
    const i64 count = index.eligible.count();
    if (count == 0) return 0;
    for (i64 k = 0; k < n; ++k) {
        const Trajectory found = eligible_at(index, scaled(randoms[2 * k], count));
        columns[k] = found.column, first[k] = found.first, steps[k] = found.steps;
    }
    return cut_windows(randoms + 1, 2, n, slice_len, left, right, index.length, first, steps);
}

// Slices, step by step. O(steps).
//   columns (or null), first, steps int64 [n]; time, column (or null) int64 [total], ends uint8 [total]: written;
//   ends is 1 at the last step of each slice.
inline void expand(const i64* columns, const i64* first, const i64* steps, i64 n, i64 length, i64* time, i64* column,
                   u8* ends) {
    for (i64 k = 0; k < n; ++k) {
        const i64 count = steps[k], unwrapped = first[k] + count <= length ? count : length - first[k];
        for (i64 j = 0; j < unwrapped; ++j) time[j] = first[k] + j;
        for (i64 j = unwrapped; j < count; ++j) time[j] = first[k] + j - length;
        for (i64 j = 0; j < count; ++j) ends[j] = j == count - 1;
        time += count, ends += count;
        if (column) {
            for (i64 j = 0; j < count; ++j) column[j] = columns[k];
            column += count;
        }
    }
}

}  // namespace replaybank::trajectories
