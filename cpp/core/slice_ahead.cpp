#include "core/slice_ahead.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bounds.hpp"
#include "base/linear_args.hpp"
#include "base/tuning.hpp"
#include "core/memory.hpp"
#include "core/parallel.hpp"

namespace simdformer {
namespace {

using Clock = std::chrono::steady_clock;

// Out of all caches; false where a program cannot see to that.
bool evict(const char* data, int64_t bytes) {
#if defined(__x86_64__)
  for (int64_t byte = 0; byte < bytes; byte += kLineBytes) __builtin_ia32_clflush(data + byte);
  __builtin_ia32_mfence();
  return true;
#else
  static_cast<void>(data), static_cast<void>(bytes);
  return false;
#endif
}

// What was measured last, and with which kernels.
std::atomic<const KernelTable*> measured_with{nullptr};
std::atomic<int64_t> measured{kSliceBytesAhead};

}  // namespace

int64_t measured_slice_ahead(const KernelTable& table) {
  const QuantizedFormat format{ScaleKind::f16, false, 32, 4, 8, nullptr};
  const int64_t slice = slice_bytes(format, kProbeDepth), slices = kHugePage / slice;
  const Memory weight = allocate(slices * slice);
  std::memset(weight.get(), 0, static_cast<std::size_t>(slices * slice));
  const std::vector<ActivationBlock> x(kProbeDepth / kBlockInputs);
  std::vector<float> out(static_cast<std::size_t>(slices * kSliceColumns));
  LinearWeight w{};
  w.weight = weight.get();
  w.dtype = DType::f32;
  w.packed = true;
  w.format = &format;
  w.columns = slices * kSliceColumns;
  w.bias_dtype = DType::f32;
  w.out.data = reinterpret_cast<char*>(out.data());
  w.out.count = w.end = w.rows = w.chunks = 1;
  w.out.length = w.columns;
  LinearArgs args{};
  args.x_blocks = x.data();
  args.depth = kProbeDepth;
  args.chunk_rows = args.count = 1;
  args.weights = &w;
  const Scratch scratch(linear_scratch_bytes(1, DType::f32));
  const int64_t choices[] = {kSliceBytesAhead, 0};
  Clock::duration best[] = {Clock::duration::max(), Clock::duration::max()};
  for (int turn = 0; turn < kProbeTurns; ++turn)
    for (int choice : {0, 1}) {
      if (!evict(weight.get(), slices * slice)) return kSliceBytesAhead;
      args.slice_ahead = choices[choice];
      const Clock::time_point begin = Clock::now();
      table.linear(args, scratch.as<void>(), 0, slices);
      best[choice] = std::min(best[choice], Clock::now() - begin);
    }
  return choices[best[1] < best[0]];
}

int64_t slice_ahead(const KernelTable& table, double bytes) {
  if (bytes < kFarthestBytes && !are_awake()) return kSliceBytesAhead;  // may stay in the last cache
  if (bytes >= kFarBytes && measured_with.load(std::memory_order_relaxed) != &table) {
    measured.store(measured_slice_ahead(table), std::memory_order_relaxed);
    measured_with.store(&table, std::memory_order_relaxed);
  }
  return measured.load(std::memory_order_relaxed);
}

}  // namespace simdformer
