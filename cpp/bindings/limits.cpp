// What the machine can do at most, run on all threads of the pool: for simdformer.bench, which times it.
#include <mutex>

#include "bindings/arrays.hpp"
#include "bindings/checks.hpp"
#include "bindings/operations.hpp"
#include "bindings/runtime.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"

namespace simdformer {
namespace {

constexpr int64_t kSteps = int64_t{1} << 17;   // of a chunk: a few tenths of a millisecond
constexpr int64_t kFloats = int64_t{1} << 16;  // of a chunk: 256 KB

// body(sink, begin, end) in chunks on all threads; the sum of what they put into their sinks.
template <class Body>
double summed(int64_t count, int64_t grain, Body body) {
  double total = 0;
  std::mutex mutex;
  NoGil nogil;
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    float sink = 0;
    body(&sink, begin, end);
    const std::lock_guard<std::mutex> lock(mutex);
    total += static_cast<double>(sink);
  });
  return total;
}

// The number of floating-point operations done.
double fma_chains(int64_t steps) {
  if (steps < 1) throw py::value_error("fma_chains: steps must be at least 1");
  const KernelTable& table = kernels();
  summed(steps, kSteps, table.fma_chains);
  return static_cast<double>(steps) * static_cast<double>(table.flops_per_step);
}

// The sum of the array's elements.
double read_memory(py::handle object) {
  const Arg arg{"read_memory", "array"};
  const Input x = read_array(arg, object);
  if (x.view.dtype != DType::f32 || x.view.rank != 1 || !has_unit_last_axis(x.view))
    refuse_value(arg, "is something else", "a contiguous float32 array of one axis");
  const auto* data = reinterpret_cast<const float*>(x.view.data);
  const KernelTable& table = kernels();
  return summed(x.view.shape[0], kFloats,
                [&](float* sink, int64_t begin, int64_t end) { table.read_memory(data, sink, begin, end); });
}

}  // namespace

void bind_limits(py::module_& module) {
  module.def("fma_chains", &fma_chains, py::arg("steps"), py::pos_only());
  module.def("read_memory", &read_memory, py::arg("array"), py::pos_only());
}

}  // namespace simdformer
