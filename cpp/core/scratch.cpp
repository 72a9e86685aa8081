// Scratch: one arena a thread. It grows when it is empty, to what was needed at once the time before.
#include <cstdlib>
#include <new>

#include "core/parallel.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace simdformer {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kMostKept = int64_t{64} << 20;

void* allocate(int64_t bytes) {
  const bool huge = bytes >= 2 * kHugePage;
  const int64_t alignment = huge ? kHugePage : kAlignment;
  if (bytes > INT64_MAX - alignment) throw std::bad_alloc();
  const size_t rounded = static_cast<size_t>((bytes + alignment - 1) / alignment * alignment);
  void* memory = std::aligned_alloc(static_cast<size_t>(alignment), rounded);
  if (!memory) throw std::bad_alloc();
#if defined(__linux__)
  if (huge)
    madvise(memory, rounded, MADV_HUGEPAGE);  // fewer TLB misses where the system grants it; else nothing
#endif
  return memory;
}

struct Arena {
  char* base = nullptr;
  int64_t capacity = 0;
  int64_t top = 0;     // bytes handed out of [base, base + capacity)
  int64_t in_use = 0;  // bytes handed out, in the arena and beside it
  int64_t peak = 0;    // the most that in_use has been within kMostKept

  ~Arena() {
    std::free(base);
    base = nullptr;
    capacity = 0;
  }

  bool holds(const void* pointer) const { return pointer >= base && pointer < base + capacity; }

  void* take(int64_t bytes) {
    if (in_use == 0) reserve(bytes > peak ? bytes : peak);
    void* pointer;
    if (bytes <= capacity - top) {
      pointer = base + top;
      top += bytes;
    } else {
      pointer = allocate(bytes);  // the arena cannot move while parts of it are in use
    }
    in_use += bytes;
    if (in_use > peak && in_use <= kMostKept) peak = in_use;
    return pointer;
  }

  void give_back(void* pointer, int64_t bytes) {
    in_use -= bytes;
    if (holds(pointer)) {
      top -= bytes;
    } else {
      std::free(pointer);
    }
  }

 private:
  void reserve(int64_t bytes) {
    if (bytes <= capacity || bytes > kMostKept) return;
    std::free(base);
    base = nullptr;
    capacity = 0;
    base = static_cast<char*>(allocate(bytes));
    capacity = bytes;
  }
};

thread_local Arena arena;

int64_t round_up(int64_t bytes) {
  if (bytes > INT64_MAX - kAlignment) throw std::bad_alloc();
  return bytes <= 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Scratch::Scratch(int64_t bytes) : bytes_(round_up(bytes)) { pointer_ = arena.take(bytes_); }

Scratch::~Scratch() { arena.give_back(pointer_, bytes_); }

}  // namespace simdformer
