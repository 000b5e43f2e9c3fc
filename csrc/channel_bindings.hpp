// The Python face of channels.hpp: what arrays say of themselves is checked here, the kernels check the rest.
#pragma once

#include <nanobind/nanobind.h>

#include "channels.hpp"
#include "held.hpp"

namespace replaybank {

namespace nb = nanobind;

// Frames [n, H, W, C], and where they go: [m, C, H, W] of the same size of items, or None.
struct SplitArgs {
    Held frames, out, after;

    SplitArgs(nb::handle from, nb::handle to, nb::handle then)
        : frames(from), out(to, PyBUF_WRITABLE), after(then, PyBUF_WRITABLE) {}

    bool fits(const Held& room) const {
        return room.is(4) && room.item() == frames.item() && room.size(1) == frames.size(3) &&
               room.size(2) == frames.size(1) && room.size(3) == frames.size(2);
    }
    bool good() const { return frames.is(4) && fits(out) && (after.none() || fits(after)); }
    channels::Shape shape(bool swapped, bool pass) const {
        return {frames.size(1) * frames.size(2), frames.size(3), frames.item(), swapped, pass};
    }
    static channels::Room room(const Held& held) { return {held.data<channels::u8>(), held.size(0)}; }
};

// Both: false where the arrays are not of these shapes, not contiguous, or overlap; nothing is written then.
inline void bind_channels(nb::module_& m) {
    using channels::i64, channels::u8;
    using namespace nb::literals;
    m.def("split_channels", [](nb::handle frames, nb::handle out, i64 at, nb::handle after, i64 after_at, bool swapped,
                               bool passing) {
        const SplitArgs args(frames, out, after);
        if (!args.good()) return false;
        const auto shape = args.shape(swapped, passing);
        const nb::gil_scoped_release released;
        return channels::split_channels(shape, args.frames.data<const u8>(), args.frames.size(0), args.room(args.out),
                                        at, args.room(args.after), after_at);
    }, "frames"_a, "out"_a, "at"_a, "after"_a.none(), "after_at"_a, "swapped"_a, "passing"_a);
    m.def("scatter_channels", [](nb::handle frames, nb::handle ends, i64 first, nb::handle places, nb::handle out,
                                 nb::handle after, bool swapped, bool passing) {
        const SplitArgs args(frames, out, after);
        const Held bounds(ends), wanted(places);
        const i64 n = args.frames.size(0);
        const auto numbers = [](const Held& held) { return held.is(1) && held.item() == sizeof(i64); };
        const bool listed = numbers(bounds) && numbers(wanted) && first >= 0 && first < bounds.size(0) - n;
        if (!args.good() || !listed) return false;
        const auto shape = args.shape(swapped, passing);
        const nb::gil_scoped_release released;
        return channels::scatter_channels(shape, args.frames.data<const u8>(), n, bounds.data<const i64>() + first,
                                          wanted.data<const i64>(), wanted.size(0), args.room(args.out),
                                          args.room(args.after));
    }, "frames"_a, "ends"_a, "first"_a, "places"_a, "out"_a, "after"_a.none(), "swapped"_a, "passing"_a);
}

}  // namespace replaybank
