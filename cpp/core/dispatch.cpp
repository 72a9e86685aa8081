// The choice between the kernel tables. Baseline code: it runs before anything is known of the machine.
#include "core/dispatch.hpp"

#include <atomic>

#include "core/runs_here.hpp"

namespace simdformer {

// One for each instruction set, from kernels/table.cpp or kernels/quantized_table.cpp. The build defines
// SIMDFORMER_WITH_<ISA> for those that it holds.
const KernelTable* table_baseline() noexcept;
const KernelTable* table_avx2() noexcept;
const KernelTable* table_avx2_vnni() noexcept;
const KernelTable* table_avx512() noexcept;
const KernelTable* table_avx512_vnni() noexcept;
const KernelTable* table_avx512_bf16() noexcept;
const KernelTable* table_neon() noexcept;
const KernelTable* table_neon_dotprod() noexcept;

namespace {

struct Isa {
  const char* name;
  bool (*runs_here)() noexcept;
  const KernelTable* (*table)() noexcept;
};

// Slowest first.
constexpr Isa kIsas[] = {
#if defined(SIMDFORMER_WITH_BASELINE)
    {"baseline", &runs_baseline, &table_baseline},
#endif
#if defined(SIMDFORMER_WITH_AVX2)
    {"avx2", &runs_avx2, &table_avx2},
#endif
#if defined(SIMDFORMER_WITH_AVX2_VNNI)
    {"avx2_vnni", &runs_avx2_vnni, &table_avx2_vnni},
#endif
#if defined(SIMDFORMER_WITH_AVX512)
    {"avx512", &runs_avx512, &table_avx512},
#endif
#if defined(SIMDFORMER_WITH_AVX512_VNNI)
    {"avx512_vnni", &runs_avx512_vnni, &table_avx512_vnni},
#endif
#if defined(SIMDFORMER_WITH_AVX512_BF16)
    {"avx512_bf16", &runs_avx512_bf16, &table_avx512_bf16},
#endif
#if defined(SIMDFORMER_WITH_NEON)
    {"neon", &runs_neon, &table_neon},
#endif
#if defined(SIMDFORMER_WITH_NEON_DOTPROD)
    {"neon_dotprod", &runs_neon_dotprod, &table_neon_dotprod},
#endif
};

#if defined(__x86_64__)
static_assert(kIsas[0].runs_here == &runs_baseline, "it runs everywhere, so that there is always a table");
#else
static_assert(kIsas[0].runs_here == &runs_neon, "it runs everywhere, so that there is always a table");
#endif

const KernelTable* best() noexcept {
  const KernelTable* table = nullptr;
  for (const Isa& isa : kIsas)
    if (isa.runs_here()) table = isa.table();
  return table;
}

std::atomic<const KernelTable*> current{best()};

bool same_name(const std::string& given, const char* name) {
  size_t i = 0;
  for (; i < given.size() && name[i] != '\0'; ++i) {
    const char c = given[i];
    if ((c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c) != name[i]) return false;
  }
  return i == given.size() && name[i] == '\0';
}

}  // namespace

const KernelTable& kernels() noexcept { return *current.load(std::memory_order_relaxed); }

std::vector<std::string> compiled_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) names.emplace_back(isa.name);
  return names;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas)
    if (isa.runs_here()) names.emplace_back(isa.name);
  return names;
}

std::string current_isa() { return kernels().isa; }

bool set_isa(const std::string& name) {
  for (const Isa& isa : kIsas) {
    if (!same_name(name, isa.name) || !isa.runs_here()) continue;
    current.store(isa.table(), std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace simdformer
