// The Python face of the kernels: argument conversion and the GIL, no arithmetic.
//
// Kernels take addresses of tensors that Python has checked (dtype, contiguity, range): an address costs
// 0.08 microseconds, a DLPack exchange of a torch tensor 1.8. Every kernel's header is its manual; its
// NumPy twin is in tests/reference/.

#include <nanobind/nanobind.h>

#include "trajectory_index.hpp"

namespace nb = nanobind;

namespace {

// ---- trajectory_index.hpp ----

using Address = std::uintptr_t;
namespace tr = replaybank::trajectories;

template <typename T>
T* at(Address address) {
    return reinterpret_cast<T*>(address);
}

// The index as Python holds it: two sets of `n_words` words, and a shape.
tr::Index index_of(Address last_words, Address last_counts, Address eligible_words, Address eligible_counts,
                   tr::i64 n_words, tr::i64 padded, tr::i64 columns, tr::i64 length, tr::i64 min_length) {
    return {tr::RankedBits(at<tr::u64>(last_words), at<tr::u32>(last_counts), n_words),
            tr::RankedBits(at<tr::u64>(eligible_words), at<tr::u32>(eligible_counts), n_words),
            padded, columns, length, min_length};
}

void bind_trajectory_index(nb::module_& m) {
    using tr::i64;
    const auto nogil = nb::call_guard<nb::gil_scoped_release>();
    m.def("ranked_counts_size", &tr::RankedBits::counts_size);
    m.def("ranked_count", [](Address words, Address counts, i64 n_words) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).count();
    });
    m.def("ranked_assign", [](Address words, Address counts, i64 n_words, i64 bit, bool value) {
        tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).assign(bit, value);
    });
    m.def("ranked_select", [](Address words, Address counts, i64 n_words, i64 rank) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).select(rank);
    });
    m.def("ranked_at_or_before", [](Address words, Address counts, i64 n_words, i64 bit) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).at_or_before(bit);
    });
    m.def("ranked_at_or_after", [](Address words, Address counts, i64 n_words, i64 bit) {
        return tr::RankedBits(at<tr::u64>(words), at<tr::u32>(counts), n_words).at_or_after(bit);
    });
    m.def("trajectory_apply", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                                 i64 length, i64 min_length, i64 rows, i64 start, i64 count, Address flags,
                                 Address before, Address cut) {
        auto index = index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length);
        tr::apply(index, rows, start, count, at<tr::u8>(flags), at<tr::u8>(before), at<tr::u8>(cut));
    }, nogil);
    m.def("trajectory_changes", [](Address values, i64 count, i64 columns, i64 bytes, Address after,
                                   Address flags) {
        tr::changes(at<tr::u8>(values), count, columns, bytes, at<tr::u8>(after), at<tr::u8>(flags));
    }, nogil);
    m.def("copy_bytes", [](Address from, i64 count, Address to) {
        std::memcpy(at<void>(to), at<void>(from), static_cast<std::size_t>(count));
    });
    m.def("trajectory_evaluate", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded,
                                    i64 columns, i64 length, i64 min_length) {
        auto index = index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length);
        tr::evaluate_all(index);
    }, nogil);
    m.def("trajectory_lengths", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded,
                                   i64 columns, i64 length, i64 min_length, Address out) {
        tr::length_range(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(out));
    }, nogil);
    m.def("trajectory_nth", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                               i64 length, i64 min_length, Address ranks, i64 n, Address out_columns, Address first,
                               Address steps) {
        return tr::nth(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(ranks), n,
                       at<i64>(out_columns), at<i64>(first), at<i64>(steps));
    }, nogil);
    m.def("trajectory_draw", [](Address lw, Address lc, Address ew, Address ec, i64 n_words, i64 padded, i64 columns,
                                i64 length, i64 min_length, Address randoms, i64 n, i64 slice_len, i64 left, i64 right,
                                Address out_columns, Address first, Address steps) {
        return tr::draw(index_of(lw, lc, ew, ec, n_words, padded, columns, length, min_length), at<i64>(randoms), n,
                        slice_len, left, right, at<i64>(out_columns), at<i64>(first), at<i64>(steps));
    }, nogil);
    m.def("trajectory_cut_windows", [](Address randoms, i64 n, i64 slice_len, i64 left, i64 right, i64 length,
                                       Address first, Address steps) {
        return tr::cut_windows(at<i64>(randoms), 1, n, slice_len, left, right, length, at<i64>(first), at<i64>(steps));
    }, nogil);
    m.def("trajectory_expand", [](Address columns, Address first, Address steps, i64 n, i64 length, Address time,
                                  Address column, Address ends) {
        tr::expand(at<i64>(columns), at<i64>(first), at<i64>(steps), n, length, at<i64>(time), at<i64>(column),
                   at<tr::u8>(ends));
    }, nogil);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled kernels over raw arrays.";
    bind_trajectory_index(m);
}
