// simdformer._core: the kernels as functions of numpy arrays. Each checks its arguments (checks.hpp,
// arrays.hpp), allocates its result or takes `out`, releases the GIL in a visible brace and calls the
// kernels.
#include "bindings/arrays.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

PYBIND11_MODULE(_core, module) {
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
  bind_attention(module);
  bind_gather(module);
  bind_limits(module);
}
