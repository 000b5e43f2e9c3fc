// The instructions that nearly all of a pickle of arrays consists of: plain values, tuples, dicts, the memo.
//
//   run_pickle   goes through instructions until one is not known here, or something is wrong
//
// Nothing is called and nothing is looked up by a name: whatever makes an object of a class (and whatever else is
// seldom) is left to the caller, the machine in src/replaybank/datasets/openx/sources/pickle_machine.py, which has its
// own copy of every instruction here. That copy is the twin: tests/datasets/openx/sources/test_safe_pickle.py runs
// both. `room` is counted as there. Never reads outside the pickle, whatever its bytes say.
//
// Python's C interface as of the stable ABI; the GIL is held.

#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace replaybank::pickles {

using Size = Py_ssize_t;

constexpr std::int64_t kObject = 64;  // OBJECT_BYTES of pickle_machine.py

// Where a machine is. The lists and the dict are borrowed.
struct Machine {
    const unsigned char* data;
    Size end;
    Size at;
    PyObject* stack;  // list
    PyObject* marks;  // list of ints: heights of the stack
    PyObject* memo;   // dict of ints
    Size floor;
    std::int64_t room;
};

enum class Stop : int {
    kUnknown = 0,        // `at` is behind an instruction for the caller to carry out
    kEnd = 1,            // behind the instruction that ends a pickle
    kCutShort = 2,       // no more bytes
    kNothingThere = 3,   // a value is wanted that is not there
    kNotRemembered = 4,  // a value is wanted that was not remembered
    kNoRoom = 5,         // more objects than the bytes can stand for
    kError = 6,          // a Python exception is set
};

inline std::uint32_t little(const unsigned char* at, int bytes) {
    std::uint32_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= static_cast<std::uint32_t>(at[i]) << (8 * i);
    return value;
}

// Takes `value` over.
inline bool push(Machine& m, PyObject* value) {
    if (value == nullptr) return false;
    const int status = PyList_Append(m.stack, value);
    Py_DECREF(value);
    return status == 0;
}

inline bool push_borrowed(Machine& m, PyObject* value) { return PyList_Append(m.stack, value) == 0; }

inline Stop remember(Machine& m, std::uint64_t number) {
    const Size count = PyList_Size(m.stack);
    if (count <= m.floor) return Stop::kNothingThere;
    PyObject* const key = PyLong_FromUnsignedLongLong(number);
    if (key == nullptr) return Stop::kError;
    const int status = PyDict_SetItem(m.memo, key, PyList_GetItem(m.stack, count - 1));
    Py_DECREF(key);
    m.room -= kObject;
    return status == 0 ? Stop::kUnknown : Stop::kError;
}

inline Stop recall(Machine& m, std::uint64_t number) {
    PyObject* const key = PyLong_FromUnsignedLongLong(number);
    if (key == nullptr) return Stop::kError;
    PyObject* const found = PyDict_GetItemWithError(m.memo, key);
    Py_DECREF(key);
    if (found == nullptr) return PyErr_Occurred() != nullptr ? Stop::kError : Stop::kNotRemembered;
    return push_borrowed(m, found) ? Stop::kUnknown : Stop::kError;
}

// The values from `begin` on become one tuple.
inline Stop tuple_from(Machine& m, Size begin) {
    PyObject* const values = PyList_GetSlice(m.stack, begin, PyList_Size(m.stack));
    if (values == nullptr) return Stop::kError;
    PyObject* const made = PyList_AsTuple(values);
    Py_DECREF(values);
    if (made == nullptr) return Stop::kError;
    if (PyList_SetSlice(m.stack, begin, PyList_Size(m.stack), nullptr) != 0) {
        Py_DECREF(made);
        return Stop::kError;
    }
    return push(m, made) ? Stop::kUnknown : Stop::kError;
}

// Keys and values since the last mark go into the dict below it. kEnd, and nothing done, where something is odd: the
// caller says what.
inline Stop set_items(Machine& m) {
    const Size depth = PyList_Size(m.marks);
    if (depth == 0) return Stop::kEnd;
    const Size begin = PyLong_AsSsize_t(PyList_GetItem(m.marks, depth - 1));
    const Size floor = depth > 1 ? PyLong_AsSsize_t(PyList_GetItem(m.marks, depth - 2)) : 0;
    const Size end = PyList_Size(m.stack);
    if (begin <= floor || end < begin || (end - begin) % 2 != 0) return Stop::kEnd;
    PyObject* const into = PyList_GetItem(m.stack, begin - 1);
    if (!PyDict_CheckExact(into)) return Stop::kEnd;
    for (Size i = begin; i < end; i += 2) {  // texts only: their hashes cannot be made to collide
        PyObject* const key = PyList_GetItem(m.stack, i);
        if (!PyUnicode_CheckExact(key) && !PyBytes_CheckExact(key)) return Stop::kEnd;
    }
    m.room -= kObject * static_cast<std::int64_t>(end - begin);
    for (Size i = begin; i < end; i += 2)
        if (PyDict_SetItem(into, PyList_GetItem(m.stack, i), PyList_GetItem(m.stack, i + 1)) != 0) return Stop::kError;
    m.floor = floor;
    if (PyList_SetSlice(m.marks, depth - 1, depth, nullptr) != 0 || PyList_SetSlice(m.stack, begin, end, nullptr) != 0)
        return Stop::kError;
    return Stop::kUnknown;
}

// Goes on from `m.at`. With kUnknown, whatever the instruction before `m.at` asks for is still to be done; with
// anything else but kEnd, `m.at` is near the fault.
inline Stop run_pickle(Machine& m) {
    while (m.at < m.end) {
        const unsigned char code = m.data[m.at++];
        const Size left = m.end - m.at;
        const unsigned char* const next = m.data + m.at;
        Stop stop = Stop::kUnknown;  // here: go on
        switch (code) {
            case 0x94: stop = remember(m, static_cast<std::uint64_t>(PyDict_Size(m.memo))); break;  // MEMOIZE
            case 'q':
                if (left < 1) return Stop::kUnknown;
                m.at += 1;
                stop = remember(m, next[0]);
                break;
            case 'h':
                if (left < 1) return Stop::kUnknown;
                m.at += 1;
                stop = recall(m, next[0]);
                break;
            case 'j':
                if (left < 4) return Stop::kUnknown;
                m.at += 4;
                stop = recall(m, little(next, 4));
                break;
            case 'K':
                if (left < 1) return Stop::kUnknown;
                m.at += 1;
                m.room -= 8;  // such small numbers are made only once
                if (!push(m, PyLong_FromLong(next[0]))) return Stop::kError;
                break;
            case 'M':
                if (left < 2) return Stop::kUnknown;
                m.at += 2;
                m.room -= kObject;
                if (!push(m, PyLong_FromLong(static_cast<long>(little(next, 2))))) return Stop::kError;
                break;
            case 'C':
                if (left < 1 || left - 1 < next[0]) return Stop::kUnknown;
                m.at += 1 + next[0];
                m.room -= kObject;
                if (!push(m, PyBytes_FromStringAndSize(reinterpret_cast<const char*>(next + 1), next[0])))
                    return Stop::kError;
                break;
            case 'B': {
                if (left < 4) return Stop::kUnknown;
                const auto size = static_cast<Size>(little(next, 4));
                if (left - 4 < size) return Stop::kUnknown;
                m.at += 4 + size;
                m.room -= kObject;
                if (!push(m, PyBytes_FromStringAndSize(reinterpret_cast<const char*>(next + 4), size)))
                    return Stop::kError;
                break;
            }
            case 'N':
                if (!push_borrowed(m, Py_None)) return Stop::kError;
                break;
            case 0x88:
                if (!push_borrowed(m, Py_True)) return Stop::kError;
                break;
            case 0x89:
                if (!push_borrowed(m, Py_False)) return Stop::kError;
                break;
            case 0x85:
            case 0x86:
            case 0x87: {
                const Size begin = PyList_Size(m.stack) - (code - 0x84);
                if (begin < m.floor) return Stop::kNothingThere;
                m.room -= 2 * kObject;
                stop = tuple_from(m, begin);
                break;
            }
            case '(': {
                m.room -= kObject;
                m.floor = PyList_Size(m.stack);
                PyObject* const height = PyLong_FromSsize_t(m.floor);
                if (height == nullptr) return Stop::kError;
                const int status = PyList_Append(m.marks, height);
                Py_DECREF(height);
                if (status != 0) return Stop::kError;
                break;
            }
            case 't': {
                const Size depth = PyList_Size(m.marks);
                if (depth == 0) return Stop::kUnknown;
                const Size begin = PyLong_AsSsize_t(PyList_GetItem(m.marks, depth - 1));
                if (PyList_SetSlice(m.marks, depth - 1, depth, nullptr) != 0) return Stop::kError;
                m.floor = depth > 1 ? PyLong_AsSsize_t(PyList_GetItem(m.marks, depth - 2)) : 0;
                m.room -= kObject + 8 * static_cast<std::int64_t>(PyList_Size(m.stack) - begin);
                stop = tuple_from(m, begin);
                break;
            }
            case 'u':
                stop = set_items(m);
                if (stop == Stop::kEnd) return Stop::kUnknown;
                break;
            case '}':
                m.room -= kObject;
                if (!push(m, PyDict_New())) return Stop::kError;
                break;
            case '.': return Stop::kEnd;
            default: return Stop::kUnknown;
        }
        if (stop != Stop::kUnknown) return stop;
        if (m.room < 0) return Stop::kNoRoom;
    }
    return Stop::kCutShort;
}

}  // namespace replaybank::pickles
