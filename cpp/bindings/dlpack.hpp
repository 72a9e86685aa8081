// Reading of DLPack capsules, which numpy cannot do for bfloat16. https://dmlc.github.io/dlpack
#pragma once

#include "bindings/arrays.hpp"

namespace simdformer {

bool has_dlpack(py::handle object);

// The memory that object.__dlpack__() offers, without a copy; the capsule, kept in `owner`, gives it back
// when it dies. BufferError when that memory is not on the CPU, is none, or is not handed out; TypeError for
// other dtypes.
//
// A tensor of PyTorch's that requires a gradient is a BufferError where gradients are recorded; elsewhere it is
// taken as it is. To be written, memory must neither be read-only nor a copy, as far as its exporter says so.
enum class Access { read, write };
Input read_dlpack(const Arg& arg, py::handle object, Accept accept, Access access = Access::read);

// The same for integers of any width, as an ndarray that keeps the capsule; and for floats and bool too.
py::object integers_of_dlpack(const Arg& arg, py::handle object);
py::object array_of_dlpack(const Arg& arg, py::handle object);

}  // namespace simdformer
