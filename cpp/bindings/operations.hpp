// The functions of the module, one file a family: rows.cpp, rope.cpp, linear.cpp, experts.cpp,
// quantized.cpp, attention*.cpp, gather.cpp, interchange.cpp, files.cpp, limits.cpp.
// Arguments are positional and in the order of functional.py, which holds names, defaults and documentation.
#pragma once

#include <pybind11/pybind11.h>

#include "bindings/arrays.hpp"

namespace simdformer {

void bind_rows(py::module_& module);  // softmax, norms, activations
void bind_rope(py::module_& module);
void bind_linear(py::module_& module);     // linear, linear_chosen, pack, PackedWeight
void bind_experts(py::module_& module);    // likeliest, mix
void bind_quantized(py::module_& module);  // QuantizedPanels
void bind_attention(py::module_& module);  // scaled_dot_product_attention
void bind_attention_backward(py::module_& module);
void bind_gradients(py::module_& module);  // gradients of rows, cross_entropy, adamw
void bind_linear_backward(py::module_& module);
void bind_gather(py::module_& module);       // embedding, repeat_kv, causal_mask
void bind_interchange(py::module_& module);  // array_of_tensor
void bind_files(py::module_& module);        // OpenFile
void bind_limits(py::module_& module);       // fma_chains, read_memory

// Adds to the module: threads, ISAs and build facts. Sets the Ctrl-C hook, and translates `Interrupted` into
// the exception that Python's signal handler raised, std::bad_alloc into a MemoryError with words.
void bind_runtime(py::module_& module);

}  // namespace simdformer
