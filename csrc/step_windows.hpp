// Steps around given ones, for what is made of several steps of a trajectory: returns, stacked frames, goals reached
// later, the steps before a slice. Works on the trajectory index, see trajectory_index.hpp; items are numbered
// row * columns + column. Random numbers are handed in.
//
// A kernel that is given an item which is none of length * columns gives -1 - k, k its position, and what it has
// written is then of no use; else it gives a number that is not negative. No allocation, no state. O(levels) an item
// for its place in its trajectory, O(1) for each step written.

#pragma once

#include <cmath>

#include "gather.hpp"
#include "slice_starts.hpp"

namespace replaybank::trajectories {

// Where an item is in its trajectory: steps before it, and from it to the last one, itself counted.
struct Place {
    i64 row, column, before, left;
};

// `before` is looked for if `back`, `left` if `ahead`; else they are 0 and 1.
inline bool place_of(const Index& index, i64 item, bool back, bool ahead, Place& out) {
    if (item < 0 || item >= index.length * index.columns) return false;
    out = {item, 0, 0, 1};
    if (index.columns > 1) out.row = item / index.columns, out.column = item % index.columns;  // slow for any number
    const i64 base = out.column * index.padded;
    if (back) {
        const i64 previous = circle_before(index.last, base, out.row, index.length);
        out.before = previous < 0 ? 0 : steps_between(previous, out.row, index.length) - 1;
    }
    if (ahead) {
        const i64 left = steps_left(index, base, out.row);
        out.left = left > 0 ? left : 1;
    }
    return true;
}

// The item `by` steps further in its column, -length <= by < length.
inline i64 item_at(const Index& index, const Place& place, i64 by) {
    i64 row = place.row + by;
    if (row < 0) row += index.length;
    if (row >= index.length) row -= index.length;
    return row * index.columns + place.column;
}

// Of each item the steps from `back` before it to `ahead` behind it, as far as its trajectory goes: where it does not,
// its first or its last step again.
//   items int64 [n]; slots int64 [n, back + 1 + ahead], before int64 [n] (at most `back`) and left int64 [n] (at most
//   `ahead` + 1, itself counted), written.
inline i64 windows(const Index& index, const i64* items, i64 n, i64 back, i64 ahead, i64* slots, i64* before,
                   i64* left) {
    for (i64 k = 0; k < n; ++k) {
        Place place;
        if (!place_of(index, items[k], back > 0, ahead > 0, place)) return -1 - k;
        const i64 most_back = place.before < back ? place.before : back;
        const i64 most_ahead = place.left - 1 < ahead ? place.left - 1 : ahead;
        for (i64 by = -back; by <= ahead; ++by)
            *slots++ = item_at(index, place, by < -most_back ? -most_back : by > most_ahead ? most_ahead : by);
        before[k] = most_back, left[k] = most_ahead + 1;
    }
    return 0;
}

// One step of the trajectory of each item: 0 the item itself or a later one, 1 the last, 2 any; uniform over them.
//   items int64 [n], randoms int64 [n] in [0, 2^63); out int64 [n], written.
inline i64 chosen_steps(const Index& index, const i64* items, i64 n, i64 which, const i64* randoms, i64* out) {
    for (i64 k = 0; k < n; ++k) {
        Place place;
        if (!place_of(index, items[k], which == 2, true, place)) return -1 - k;
        const i64 by = which == 0   ? scaled(randoms[k], place.left)
                       : which == 1 ? place.left - 1
                                    : scaled(randoms[k], place.before + place.left) - place.before;
        out[k] = item_at(index, place, by);
    }
    return 0;
}

// Slices with the `n` steps before each in its trajectory in front of it; where there are fewer, the first that there
// is again, which `padded` marks. A slice ends where ends[k] is set, the last one in any case. Gives the number of
// steps written: count + n * slices.
//   slots int64 [count], ends uint8 [count]; out int64, from int64 (the step of the batch that a step goes with: that
//   which it is, or the first of its slice), padded uint8: written.
inline i64 lengthened(const Index& index, const i64* slots, const u8* ends, i64 count, i64 n, i64* out, i64* from,
                      u8* padded) {
    i64 total = 0;
    bool first = true;
    for (i64 k = 0; k < count; ++k) {
        if (first) {
            Place place;
            if (!place_of(index, slots[k], true, false, place)) return -1 - k;
            for (i64 by = n; by > 0; --by, ++total) {
                const bool there = by <= place.before;
                out[total] = item_at(index, place, there ? -by : -place.before);
                from[total] = k, padded[total] = !there;
            }
        } else if (slots[k] < 0 || slots[k] >= index.length * index.columns) {
            return -1 - k;
        }
        out[total] = slots[k], from[total] = k, padded[total] = 0;
        ++total;
        first = ends[k] != 0;
    }
    return total;
}

// Whether a step is one of the first `n` of its slice, as above. O(count).
inline void first_steps(const u8* ends, i64 count, i64 n, u8* out) {
    i64 since = 0;
    for (i64 k = 0; k < count; ++k) {
        out[k] = since < n;
        since = ends[k] ? 0 : since + 1;
    }
}

// Discounted sums in double: out[k, w] = sum of powers[j] * values[k, j, w] over j < steps[k].
//   values T [n, most, width], steps int64 [n] in [0, most], powers double [most]; out T [n, width], written.
template <class T>
void discounted_sums(const T* values, i64 n, i64 most, i64 width, const i64* steps, const double* powers, T* out) {
    for (i64 k = 0; k < n; ++k, values += most * width, out += width) {
        for (i64 w = 0; w < width; ++w) {
            double sum = 0;
            for (i64 j = 0; j < steps[k]; ++j) sum += powers[j] * static_cast<double>(values[j * width + w]);
            out[w] = static_cast<T>(sum);
        }
    }
}

// Returns of up to `most` steps from each item on, read where the rewards lie: out[k, w] = sum of powers[j] times value
// w of the reward of the j-th step, in double; last[k] is the last step that is summed, steps[k] their number, discounts
// [k] the power of as many. Gives 0, or -1 - k as above.
//   rewards   address of the rewards of item 0, `stride` bytes from one item's to the next, `width` values T each
//   powers    double [known]: powers of the discount; of higher ones the kernel multiplies on
//   out T [n, width], steps int64 [n], discounts T [n], last int64 [n]: written
template <class T>
i64 returns(const Index& index, const i64* items, i64 n, i64 most, const char* rewards, i64 stride, i64 width,
            double gamma, const double* powers, i64 known, T* out, i64* steps, T* discounts, i64* last) {
    const auto power = [=](i64 exponent) {
        return exponent < known ? powers[exponent] : std::pow(gamma, static_cast<double>(exponent));
    };
    // Lines of this many steps are asked for ahead, while places are looked for; that of the first step has been read
    // with the batch, and what lies behind them the processor guesses by itself.
    constexpr i64 kAsked = 8;
    const i64 slots = index.length * index.columns, asked = most < kAsked ? most : kAsked;
    for (i64 k = 0; k < n; ++k) {
        Place place;
        if (!place_of(index, items[k], false, most > 1, place)) return -1 - k;
        const i64 count = place.left < most ? place.left : most;
        steps[k] = count, discounts[k] = static_cast<T>(power(count)), last[k] = item_at(index, place, count - 1);
        // In the loop itself: gcc takes a function that does nothing else for one that does nothing.
        for (i64 j = 1, item = items[k] + index.columns; j < asked && item < slots; ++j, item += index.columns)
            replaybank::detail::prefetch(rewards + item * stride);
    }
    for (i64 k = 0; k < n; ++k) {
        for (i64 w = 0; w < width; ++w) {
            double sum = 0;
            i64 item = items[k];
            for (i64 j = 0; j < steps[k]; ++j) {
                T value;
                std::memcpy(&value, rewards + item * stride + w * static_cast<i64>(sizeof(T)), sizeof(T));
                sum += power(j) * static_cast<double>(value);
                item += index.columns;
                if (item >= slots) item -= slots;
            }
            out[k * width + w] = static_cast<T>(sum);
        }
    }
    return 0;
}

}  // namespace replaybank::trajectories
