// Leaves that are not stored because they are those of the next step: reading them, and keeping aside the ones that
// are not.
//
// `n` items, numbered time-major with `width` items a row of time: the successor of item i is (i + width) mod n. Each
// of the `leaf_count` made leaves has a stored *source* (a plan of gather.hpp over the items) and a column *aside* (a
// plan over slots). `place[i]` says where the made leaves of item i are:
//     kUnwritten    item i has never been written
//     kDerived      in the source of its successor
//     kPending      item i is being written (also what a killed writer leaves)
//     2 + s         in slot s of the columns aside
// Whether they are derived is decided by comparing bytes, never by flags of episode ends: what is read is, bit by bit,
// what was written, however items were ordered, replaced or cut.
//
// Writing items is release (before their leaves are stored), then settle (after). Both take the indices of the items,
// each in [0, n) or the position of the first that is not is returned and nothing is changed; -1 is success,
// kNoSlot means that there were not enough free slots (the caller sees to it that there are).
// O(count * bytes), no allocation except for threads. Not thread-safe where it writes: the buffer's lock guards it.
#pragma once

#include <cstdint>
#include <cstring>

#include "gather.hpp"
#include "slots.hpp"

namespace replaybank {

struct NextLeaves {
    const Leaf* sources;
    const Leaf* aside;
    std::int64_t leaf_count;
    std::int32_t* place;
    std::int64_t n;
    std::int64_t width;
    Slots slots;

    static constexpr std::int32_t kUnwritten = 0;
    static constexpr std::int32_t kDerived = 1;
    static constexpr std::int32_t kPending = -1;
    static constexpr std::int32_t kFirstSlot = 2;
    static constexpr std::int64_t kNoSlot = -2;

    std::int64_t after(std::int64_t item) const { return item + width < n ? item + width : item + width - n; }
    std::int64_t before(std::int64_t item) const { return item >= width ? item - width : item - width + n; }

    static char* at(const Leaf& leaf, std::int64_t number) {
        return reinterpret_cast<char*>(leaf.address + number * leaf.stride);
    }
    const char* batch(std::uintptr_t address, std::int64_t l, std::int64_t k) const {
        return reinterpret_cast<const char*>(address) + k * sources[l].bytes;
    }

    bool in_slot(std::int64_t item) const { return place[item] >= kFirstSlot; }

    void free_slot(std::int64_t item) const { slots.give(place[item] - kFirstSlot); }

    // Whether the leaves aside of an item are the sources of its successor.
    bool aside_equals(std::int64_t item, std::int64_t successor) const {
        const std::int64_t slot = place[item] - kFirstSlot;
        for (std::int64_t l = 0; l < leaf_count; ++l) {
            if (std::memcmp(at(aside[l], slot), at(sources[l], successor),
                            static_cast<std::size_t>(sources[l].bytes)) != 0) {
                return false;
            }
        }
        return true;
    }

    bool batch_equals(const std::uintptr_t* batches, std::int64_t k, std::int64_t successor) const {
        for (std::int64_t l = 0; l < leaf_count; ++l) {
            if (std::memcmp(batch(batches[l], l, k), at(sources[l], successor),
                            static_cast<std::size_t>(sources[l].bytes)) != 0) {
                return false;
            }
        }
        return true;
    }
};

// Before a run of items is stored: derived[k] = 1 where the made leaves of item (start + k) mod n will be the sources
// of its successor, once the run is stored. `sources` and `made` are the run's leaves, `count <= n`. Changes nothing.
// Returns the number of those that will not be.
inline std::int64_t next_compare(const NextLeaves& next, std::int64_t start, std::int64_t count,
                                 const std::uintptr_t* sources, const std::uintptr_t* made, std::uint8_t* derived) {
    std::int64_t others = 0;
    for (std::int64_t k = 0; k < count; ++k) {
        std::int64_t successor = k + next.width;
        if (successor >= count && count == next.n) successor -= count;
        if (successor < count) {
            bool equal = true;
            for (std::int64_t l = 0; equal && l < next.leaf_count; ++l) {
                equal = std::memcmp(next.batch(made[l], l, k), next.batch(sources[l], l, successor),
                                    static_cast<std::size_t>(next.sources[l].bytes)) == 0;
            }
            derived[k] = equal;
        } else {
            const std::int64_t item = next.after(start + k < next.n ? start + k : start + k - next.n);
            derived[k] = next.place[item] != NextLeaves::kUnwritten && next.batch_equals(made, k, item);
        }
        others += derived[k] == 0;
    }
    return others;
}

// Before items are stored: frees their slots, and keeps aside what other items derive from them.
inline std::int64_t next_release(const NextLeaves& next, const std::int64_t* index, std::int64_t count) {
    for (std::int64_t k = 0; k < count; ++k) {
        if (index[k] < 0 || index[k] >= next.n) return k;
    }
    for (std::int64_t k = 0; k < count; ++k) {
        if (next.in_slot(index[k])) next.free_slot(index[k]);
        next.place[index[k]] = NextLeaves::kPending;
    }
    for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t before = next.before(index[k]);
        if (next.place[before] != NextLeaves::kDerived) continue;
        const std::int64_t slot = next.slots.take();
        if (slot < 0) return NextLeaves::kNoSlot;
        for (std::int64_t l = 0; l < next.leaf_count; ++l) {
            std::memcpy(NextLeaves::at(next.aside[l], slot), NextLeaves::at(next.sources[l], index[k]),
                        static_cast<std::size_t>(next.sources[l].bytes));
        }
        next.place[before] = static_cast<std::int32_t>(slot + NextLeaves::kFirstSlot);
    }
    return -1;
}

// After items were stored: keeps aside their made leaves where they are not derived, and frees the slots of the
// items before them where they now are. `derived` is next_compare's answer, or null: then it is found out here. Of
// repeated indices the last counts.
inline std::int64_t next_settle(const NextLeaves& next, const std::int64_t* index, std::int64_t count,
                                const std::uintptr_t* made, const std::uint8_t* derived) {
    for (std::int64_t k = count - 1; k >= 0; --k) {
        const std::int64_t item = index[k];
        if (next.place[item] != NextLeaves::kPending) continue;
        const std::int64_t after = next.after(item);
        const bool equal = derived != nullptr ? derived[k] != 0
                                              : next.place[after] != NextLeaves::kUnwritten &&
                                                    next.batch_equals(made, k, after);
        if (equal) {
            next.place[item] = NextLeaves::kDerived;
            continue;
        }
        const std::int64_t slot = next.slots.take();
        if (slot < 0) return NextLeaves::kNoSlot;
        for (std::int64_t l = 0; l < next.leaf_count; ++l) {
            std::memcpy(NextLeaves::at(next.aside[l], slot), next.batch(made[l], l, k),
                        static_cast<std::size_t>(next.sources[l].bytes));
        }
        next.place[item] = static_cast<std::int32_t>(slot + NextLeaves::kFirstSlot);
    }
    for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t before = next.before(index[k]);
        if (next.in_slot(before) && next.aside_equals(before, index[k])) {
            next.free_slot(before);
            next.place[before] = NextLeaves::kDerived;
        }
    }
    return -1;
}

// batch[k] = made leaves of item index[k], where -valid <= index[k] < valid; else the position of the first bad one.
inline std::int64_t next_gather(const NextLeaves& next, std::int64_t valid, const std::int64_t* index,
                                std::int64_t count, const std::uintptr_t* batches, std::int64_t threads) {
    const std::int64_t bad = detail::first_bad(index, count, valid);
    if (bad >= 0) return bad;
    const auto part = [&next, valid, index, batches](std::int64_t first, std::int64_t last) {
        constexpr std::int64_t kAhead = 8;
        const auto address = [&](std::int64_t k, std::int64_t l) {
            const std::int64_t item = index[k] < 0 ? index[k] + valid : index[k];
            return next.in_slot(item) ? NextLeaves::at(next.aside[l], next.place[item] - NextLeaves::kFirstSlot)
                                      : NextLeaves::at(next.sources[l], next.after(item));
        };
        for (std::int64_t l = 0; l < next.leaf_count; ++l) {
            const std::int64_t bytes = next.sources[l].bytes;
            char* to = reinterpret_cast<char*>(batches[l]) + first * bytes;
            for (std::int64_t k = first; k < last; ++k, to += bytes) {
                if (k + kAhead < last) {
                    const char* line = address(k + kAhead, l);
                    for (std::int64_t at = 0; at < bytes && at < detail::kPrefetchLines * detail::kLine;
                         at += detail::kLine) {
                        detail::prefetch(line + at);
                    }
                }
                std::memcpy(to, address(k, l), static_cast<std::size_t>(bytes));
            }
        }
    };
    std::int64_t item_bytes = 0;
    for (std::int64_t l = 0; l < next.leaf_count; ++l) item_bytes += next.sources[l].bytes;
    detail::in_parts(count, item_bytes, threads, part);
    return -1;
}

}  // namespace replaybank
