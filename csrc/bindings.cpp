// The Python face of the kernels: argument conversion and the GIL, no arithmetic.
//
// Kernels take addresses of tensors that Python has checked (dtype, contiguity, range): an address costs
// 0.08 microseconds, a DLPack exchange of a torch tensor 1.8. Every kernel's header is its manual; its
// NumPy twin is in tests/reference/.

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "gather.hpp"
#include "memory.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Address = std::uintptr_t;
using Addresses = std::vector<std::uintptr_t>;
using Count = std::int64_t;

// --- gather.hpp -----------------------------------------------------------------------------------------

const replaybank::Leaf* leaves_at(Address plan) { return reinterpret_cast<const replaybank::Leaf*>(plan); }
const std::int64_t* index_at(Address index) { return reinterpret_cast<const std::int64_t*>(index); }
Count size_of(const Addresses& batches) { return static_cast<Count>(batches.size()); }

void bind_gather(nb::module_& m) {
    using Released = nb::call_guard<nb::gil_scoped_release>;
    m.def(
        "gather",
        [](Address plan, Count n, Address index, Count count, const Addresses& batches, Count threads) {
            return replaybank::gather(leaves_at(plan), size_of(batches), n, index_at(index), count, batches.data(),
                                      threads);
        },
        "plan"_a, "n"_a, "index"_a, "count"_a, "batches"_a, "threads"_a, Released());
    m.def(
        "gather_run",
        [](Address plan, Count n, Count start, Count count, const Addresses& batches, Count threads) {
            return replaybank::gather_run(leaves_at(plan), size_of(batches), n, start, count, batches.data(), threads);
        },
        "plan"_a, "n"_a, "start"_a, "count"_a, "batches"_a, "threads"_a, Released());
    m.def(
        "scatter",
        [](Address plan, Count n, Address index, Count count, const Addresses& batches) {
            return replaybank::scatter(leaves_at(plan), size_of(batches), n, index_at(index), count, batches.data());
        },
        "plan"_a, "n"_a, "index"_a, "count"_a, "batches"_a, Released());
    m.def(
        "scatter_run",
        [](Address plan, Count n, Count start, Count count, const Addresses& batches, Count threads) {
            return replaybank::scatter_run(leaves_at(plan), size_of(batches), n, start, count, batches.data(),
                                           threads);
        },
        "plan"_a, "n"_a, "start"_a, "count"_a, "batches"_a, "threads"_a, Released());
}

// --- memory.hpp -----------------------------------------------------------------------------------------

void bind_memory(nb::module_& m) {
    m.def("ask_large_pages", &replaybank::ask_large_pages, "address"_a, "bytes"_a);
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled kernels over raw arrays.";
    bind_gather(m);
    bind_memory(m);
}
