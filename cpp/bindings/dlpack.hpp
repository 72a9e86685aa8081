// Reading of DLPack capsules, which numpy cannot do for bfloat16. https://dmlc.github.io/dlpack
#pragma once

#include "bindings/arrays.hpp"

namespace simdformer {

bool has_dlpack(py::handle object);

// The memory that object.__dlpack__() offers, without a copy; the capsule, kept in `owner`, gives it back
// when it dies. BufferError when that memory is not on the CPU, is none, or is not handed out; TypeError for
// other dtypes.
Input read_dlpack(const Arg& arg, py::handle object, Accept accept);

// The same for integers of any width, as an ndarray that keeps the capsule.
py::object integers_of_dlpack(const Arg& arg, py::handle object);

}  // namespace simdformer
