// simdformer._core: the operations of cpp/core as functions of numpy arrays. Each checks its arguments
// (checks.hpp, arrays.hpp), allocates its result or takes `out`, releases the GIL in a visible brace and
// calls the core.
#include "bindings/arrays.hpp"
#include "bindings/operations.hpp"

PYBIND11_MODULE(_core_of_main_interpreter, module) {
  using namespace simdformer;
  py::options options;
  options.disable_function_signatures();
  module.doc() =
      "The compiled part of simdformer. Its functions take positional arguments only: see functional.py.";
  init_arrays();
  bind_runtime(module);
  bind_rows(module);
  bind_rope(module);
  bind_linear(module);
  bind_experts(module);
  bind_quantized(module);
  bind_attention(module);
  bind_attention_backward(module);
  bind_gather(module);
  bind_gradients(module);
  bind_linear_backward(module);
  bind_interchange(module);
  bind_files(module);
  bind_limits(module);
}

// In a subinterpreter pybind11's own beginning would wait for the GIL that its thread holds (before 3.12), so
// the question comes first. numpy does not support them either.
PYBIND11_PLUGIN_IMPL(_core) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "simdformer: cannot be imported in a subinterpreter, needs the main interpreter; use "
                    "processes or threads instead");
    return nullptr;
  }
  return PyInit__core_of_main_interpreter();
}
