// fma_chains, read_memory: for simdformer.bench, which times them.
#include "core/limits.hpp"

#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"

namespace simdformer {
namespace {

double fma_chains_call(py::handle object) {
  const Arg arg{"fma_chains", "steps"};
  const int64_t steps = read_integer(arg, object);
  if (steps < 1) refuse_value(arg, "is " + std::to_string(steps), "at least 1");
  NoGil nogil;
  return fma_chains(steps);
}

double read_memory_call(py::handle object) {
  const Arg arg{"read_memory", "array"};
  const Input x = read_array(arg, object);
  if (x.view.dtype != DType::f32 || x.view.rank != 1 || !has_unit_last_axis(x.view))
    refuse_value(arg, "is something else", "a contiguous float32 array of one axis");
  NoGil nogil;
  return read_memory(reinterpret_cast<const float*>(x.view.data), x.view.shape[0]);
}

}  // namespace

void bind_limits(py::module_& module) {
  module.def("fma_chains", &fma_chains_call, py::arg("steps"), py::pos_only());
  module.def("read_memory", &read_memory_call, py::arg("array"), py::pos_only());
}

}  // namespace simdformer
