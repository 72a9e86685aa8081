// numpy's arrays in memory of results (core/result_memory.hpp). Needs the GIL.
#pragma once

#include "bindings/messages.hpp"

namespace simdformer {

// From here on the arrays that this thread makes are in such memory, numpy's own too. False where somebody has told
// numpy of a memory already.
bool begin_result_memory();
void end_result_memory();  // after a true one

// The same for a scope, if it is wanted.
class InResultMemory {
 public:
  explicit InResultMemory(bool wanted) : begun_(wanted && begin_result_memory()) {}
  ~InResultMemory() {
    if (begun_) end_result_memory();
  }
  InResultMemory(const InResultMemory&) = delete;
  InResultMemory& operator=(const InResultMemory&) = delete;

 private:
  bool begun_;
};

}  // namespace simdformer
