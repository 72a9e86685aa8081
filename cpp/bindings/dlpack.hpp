// Reading of DLPack capsules, which numpy cannot do for bfloat16. https://dmlc.github.io/dlpack
#pragma once

#include "bindings/arrays.hpp"

namespace simdformer {

bool has_dlpack(py::handle object);

// BufferError when the object says that its memory is not the CPU's.
void check_cpu(const Arg& arg, py::handle object);

// Views the memory that object.__dlpack__() offers; the capsule, kept in `owner`, gives it back when it dies.
// BufferError when the memory is not on the CPU or the object does not hand it out, TypeError for other
// dtypes.
Input read_dlpack(const Arg& arg, py::handle object, Accept accept);

}  // namespace simdformer
