// Where slices of a given length may start, and how far they reach. Works on the trajectory index, see
// trajectory_index.hpp; items are numbered row * columns + column.

#pragma once

#include "trajectory_index.hpp"

namespace replaybank::trajectories {

// Steps from `row` to the last of its trajectory, both counted, on the circle of column `base / padded`; 0 if the
// column has no last step.
inline i64 steps_left(const Index& index, i64 base, i64 row) {
    const i64 last = circle_after(index.last, base, row, index.length);
    return last < 0 ? 0 : last >= row ? last - row + 1 : last - row + index.length + 1;
}

// Marks, for rows start .. start + count - 1 (modulo length; 0 <= start < length, count <= length) of all columns,
// whether a slice may start there: `needed` steps fit before the trajectory's end, or, if `first_steps`, it is a
// trajectory's first step. O(count) a column.
//   mask uint8 [length, columns]
inline void starts(const Index& index, i64 start, i64 count, i64 needed, bool first_steps, u8* mask) {
    const i64 length = index.length, columns = index.columns;
    if (start < 0 || start >= length || count <= 0 || count > length) return;
    for (i64 column = 0; column < columns; ++column) {
        const i64 base = column * index.padded;
        const auto is_last = [&](i64 row) { return index.last.word((base + row) >> 6) >> ((base + row) & 63) & 1; };
        i64 row = (start + count - 1) % length;
        i64 left = steps_left(index, base, row);
        for (i64 k = 0; k < count; ++k) {
            const i64 before = row > 0 ? row - 1 : length - 1;
            const bool ends_before = is_last(before);
            mask[row * columns + column] = left >= needed || (first_steps && ends_before && left > 0);
            left = ends_before ? 1 : left > 0 ? left + 1 : 0;
            row = before;
        }
    }
}

// Slices of at most `slice_len` steps that start at given items and end with their trajectories. Gives the number of
// steps in all, or -1 - k if items[k] is not one of length * columns. O(levels) each.
//   items int64 [n]; columns, first, steps int64 [n], written.
inline i64 spans(const Index& index, const i64* items, i64 n, i64 slice_len, i64* columns, i64* first, i64* steps) {
    i64 total = 0;
    for (i64 k = 0; k < n; ++k) {
        if (items[k] < 0 || items[k] >= index.length * index.columns) return -1 - k;
        const i64 row = items[k] / index.columns, column = items[k] % index.columns;
        const i64 left = steps_left(index, column * index.padded, row);
        columns[k] = column, first[k] = row, steps[k] = left < slice_len ? left : slice_len;
        total += steps[k];
    }
    return total;
}

// Of given items, the steps of their trajectories before and from them on. Gives 0, or -1 - k if items[k] is not one
// of length * columns. O(levels) each.
//   items int64 [n]; before, left int64 [n], written.
inline i64 places(const Index& index, const i64* items, i64 n, i64* before, i64* left) {
    for (i64 k = 0; k < n; ++k) {
        if (items[k] < 0 || items[k] >= index.length * index.columns) return -1 - k;
        const i64 row = items[k] / index.columns, base = items[k] % index.columns * index.padded;
        const i64 previous = circle_before(index.last, base, row, index.length);
        before[k] = previous < 0 ? 0 : steps_between(previous, row, index.length) - 1;
        left[k] = steps_left(index, base, row);
    }
    return 0;
}

// Whether any of two flags is set; any byte but 0 is true. O(n).
inline void either(const u8* left, const u8* right, i64 n, u8* out) {
    for (i64 k = 0; k < n; ++k) out[k] = (left[k] | right[k]) != 0;
}

// Each of n values of 4 or 8 bytes as often as its slice has steps. O(steps in all).
//   steps int64 [n]
template <class Word>
void repeat(const Word* values, const i64* steps, i64 n, Word* out) {
    for (i64 k = 0; k < n; ++k)
        for (i64 j = 0; j < steps[k]; ++j) *out++ = values[k];
}

}  // namespace replaybank::trajectories
