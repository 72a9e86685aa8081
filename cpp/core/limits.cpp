#include "core/limits.hpp"

#include <mutex>

#include "core/dispatch.hpp"
#include "core/parallel.hpp"

namespace simdformer {
namespace {

// Long chunks, because nothing but the machine is to be measured.
constexpr int64_t kSteps = int64_t{1} << 17;   // a few tenths of a millisecond
constexpr int64_t kFloats = int64_t{1} << 16;  // 256 KB

// body(sink, begin, end) in chunks on all threads; the sum of what they put into their sinks.
template <class Body>
double summed(int64_t count, int64_t grain, Body body) {
  double total = 0;
  std::mutex mutex;
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    float sink = 0;
    body(&sink, begin, end);
    const std::lock_guard<std::mutex> lock(mutex);
    total += static_cast<double>(sink);
  });
  return total;
}

}  // namespace

double fma_chains(int64_t steps) {
  const KernelTable& table = kernels();
  summed(steps, kSteps, table.fma_chains);
  return static_cast<double>(steps) * static_cast<double>(table.flops_per_step);
}

double read_memory(const float* data, int64_t count) {
  const KernelTable& table = kernels();
  return summed(count, kFloats,
                [&](float* sink, int64_t begin, int64_t end) { table.read_memory(data, sink, begin, end); });
}

}  // namespace simdformer
