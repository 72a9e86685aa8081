// The choice between the kernel tables. Baseline code: it runs before anything is known of the machine.
#include "core/dispatch.hpp"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

namespace simdformer {

// One a file compiled from kernels/table.cpp. The build defines SIMDFORMER_WITH_<ISA> for those that it
// holds.
const KernelTable* table_baseline() noexcept;
const KernelTable* table_avx2() noexcept;
const KernelTable* table_avx2_vnni() noexcept;
const KernelTable* table_avx512() noexcept;
const KernelTable* table_avx512_vnni() noexcept;
const KernelTable* table_avx512_bf16() noexcept;
const KernelTable* table_neon() noexcept;
const KernelTable* table_neon_dotprod() noexcept;

namespace {

// What the CPU has and the operating system saves: __builtin_cpu_supports looks at both. F16C is looked up by
// hand (CPUID leaf 1, ECX bit 29), because older compilers do not know its name; its registers are AVX's.
#if defined(__x86_64__)
bool has_f16c() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

[[maybe_unused]] bool has_avx2() noexcept {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

[[maybe_unused]] bool has_avx512() noexcept {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// A compiler that cannot build these need not know the names.
#if defined(SIMDFORMER_WITH_AVX2_VNNI)
bool has_avx2_vnni() noexcept { return has_avx2() && __builtin_cpu_supports("avxvnni"); }
#endif
#if defined(SIMDFORMER_WITH_AVX512_VNNI)
bool has_avx512_vnni() noexcept { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif
#if defined(SIMDFORMER_WITH_AVX512_BF16)
bool has_avx512_bf16() noexcept {
  return has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}
#endif
#elif defined(SIMDFORMER_WITH_NEON_DOTPROD)
bool has_dotprod() noexcept {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every Mac with an ARM processor
#endif
}
#endif

[[maybe_unused]] bool always() noexcept { return true; }

struct Isa {
  const char* name;
  bool (*runs_here)() noexcept;
  const KernelTable* (*table)() noexcept;
};

// Slowest first.
constexpr Isa kIsas[] = {
#if defined(SIMDFORMER_WITH_BASELINE)
    {"baseline", &always, &table_baseline},
#endif
#if defined(SIMDFORMER_WITH_AVX2)
    {"avx2", &has_avx2, &table_avx2},
#endif
#if defined(SIMDFORMER_WITH_AVX2_VNNI)
    {"avx2_vnni", &has_avx2_vnni, &table_avx2_vnni},
#endif
#if defined(SIMDFORMER_WITH_AVX512)
    {"avx512", &has_avx512, &table_avx512},
#endif
#if defined(SIMDFORMER_WITH_AVX512_VNNI)
    {"avx512_vnni", &has_avx512_vnni, &table_avx512_vnni},
#endif
#if defined(SIMDFORMER_WITH_AVX512_BF16)
    {"avx512_bf16", &has_avx512_bf16, &table_avx512_bf16},
#endif
#if defined(SIMDFORMER_WITH_NEON)
    {"neon", &always, &table_neon},
#endif
#if defined(SIMDFORMER_WITH_NEON_DOTPROD)
    {"neon_dotprod", &has_dotprod, &table_neon_dotprod},
#endif
};

static_assert(kIsas[0].runs_here == &always, "the slowest runs everywhere, so that there is always a table");

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
