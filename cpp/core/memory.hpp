// Memory in one piece: 64-byte aligned, in huge pages where it is large enough to span some.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace simdformer {

struct FreeMemory {
  void operator()(char* memory) const noexcept { std::free(memory); }
};
using Memory = std::unique_ptr<char, FreeMemory>;

// At least `bytes` of it. Throws std::bad_alloc.
Memory allocate(int64_t bytes);

}  // namespace simdformer
