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

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tfrecord.hpp"

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
    m.def(
        "flatten_index",
        [](const Addresses& indices, const std::vector<Count>& sizes, Count count, Address out) {
            return replaybank::flatten_index(indices.data(), sizes.data(), size_of(indices), count,
                                             reinterpret_cast<Count*>(out));
        },
        "indices"_a, "sizes"_a, "count"_a, "out"_a, Released());
}

// --- memory.hpp -----------------------------------------------------------------------------------------

void bind_memory(nb::module_& m) {
    m.def("ask_large_pages", &replaybank::ask_large_pages, "address"_a, "bytes"_a);
}

}  // namespace

// ------------------------------------------------------------------------------------------------ tfrecord

namespace tfr = replaybank::tfrecord;

namespace {

// Releasing the GIL costs more than walking a small payload, and far more when another thread takes it.
constexpr std::size_t kReleaseAbove = std::size_t{1} << 18;

// Payloads are `bytes`: immutable and held by the caller for as long as the call lasts.
struct Payload {
    explicit Payload(const nb::bytes& from) : data(static_cast<const tfr::Byte*>(from.data())), size(from.size()) {}
    const tfr::Byte* data;
    std::size_t size;
};

template <class T>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);  // NOLINT: addresses come from arrays that Python checked
}

void bind_tfrecord(nb::module_& m) {
    m.def("scan_records", [](const nb::bytes& block, std::size_t start, std::uintptr_t rows, std::size_t capacity) {
        const Payload from(block);
        return tfr::scan_records(from.data, from.size, start, at<std::int64_t>(rows), capacity);
    });
    m.def("index_example", [](const nb::bytes& payload, std::uintptr_t rows, std::size_t capacity) {
        const Payload from(payload);
        std::optional<nb::gil_scoped_release> released;
        if (from.size > kReleaseAbove) released.emplace();
        return tfr::index_example(from.data, from.size, at<std::int64_t>(rows), capacity);
    });
    m.def("match_example", [](const nb::bytes& payload, const nb::bytes& names, std::uintptr_t offsets,
                              std::size_t count, std::uintptr_t rows) {
        const Payload from(payload);
        const tfr::Names wanted{Payload(names).data, at<const std::int64_t>(offsets), count};
        std::optional<nb::gil_scoped_release> released;
        if (from.size > kReleaseAbove) released.emplace();
        return tfr::match_example(from.data, from.size, wanted, at<std::int64_t>(rows));
    });
    m.def("decode_numbers", [](const nb::bytes& payload, std::int64_t offset, std::int64_t length, int dtype,
                               std::uintptr_t out, std::size_t count) {
        const Payload from(payload);
        std::optional<nb::gil_scoped_release> released;
        if (length > static_cast<std::int64_t>(kReleaseAbove)) released.emplace();
        return tfr::decode_numbers(from.data, from.size, offset, length, dtype, at<void>(out), count);
    });
    m.def("decode_bytes", [](const nb::bytes& payload, std::int64_t offset, std::int64_t length, std::uintptr_t out,
                             std::size_t count) {
        const Payload from(payload);
        return tfr::decode_bytes(from.data, from.size, offset, length, at<std::int64_t>(out), count);
    });
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Compiled kernels over raw arrays.";
    bind_tfrecord(m);
    bind_gather(m);
    bind_memory(m);
}
