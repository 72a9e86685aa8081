// Threads, instruction sets and Ctrl-C for Python. The environment variables are read in runtime.py, because
// an exception that leaves a module's initialisation becomes an ImportError.
#include <pthread.h>
#include <pybind11/stl.h>

#include <atomic>
#include <new>

#include "bindings/operations.hpp"
#include "bindings/result_memory.hpp"
#include "core/dispatch.hpp"
#include "core/parallel.hpp"
#include "core/result_memory.hpp"

namespace simdformer {
namespace {

std::atomic<unsigned long> main_thread{0};  // NOLINT(runtime/int): the type of PyThread_get_thread_ident

// Has a signal handler raised an exception? Only the main thread runs handlers; the others do not even take
// the GIL.
bool signal_handler_raised() {
  if (PyThread_get_thread_ident() != main_thread.load(std::memory_order_relaxed)) return false;
  if (!Py_IsInitialized()) return false;
  const PyGILState_STATE gil = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  PyGILState_Release(gil);
  return raised;
}

// What the pool and the scratch memory throw. After a Ctrl-C the exception is set already, by the handler.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Interrupted&) {
    if (PyErr_Occurred() == nullptr) PyErr_SetNone(PyExc_KeyboardInterrupt);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError,
                    "simdformer: there is not enough memory for the intermediate results of this call");
  }
}

// Forward passes of this thread that are under way, one in the other, and whether the outermost has begun memory.
thread_local int passes = 0;
thread_local bool has_begun = false;

void begin_pass() {
  if (passes == 0) has_begun = begin_result_memory();
  ++passes;
  stay_awake();
}

void end_pass() {
  may_sleep();
  if (passes > 0 && --passes == 0 && has_begun) end_result_memory();
}

void watch_signals() {
  const auto ident = py::module_::import("threading").attr("main_thread")().attr("ident");
  main_thread.store(ident.cast<unsigned long>());
  // The thread that forks is the child's main thread.
  pthread_atfork(nullptr, nullptr, [] { main_thread.store(PyThread_get_thread_ident()); });
  py::register_local_exception_translator(&translate);
  set_interrupt_hook(&signal_handler_raised);
}

py::dict build_info() {
  py::dict info;
  info["version"] = SIMDFORMER_VERSION;
#if defined(__clang__)
  info["compiler"] = "clang " __clang_version__;
#else
  info["compiler"] = "gcc " __VERSION__;
#endif
  info["xsimd"] = SIMDFORMER_XSIMD_VERSION;
  info["xtensor"] = SIMDFORMER_XTENSOR_VERSION;
  info["pybind11"] = PYBIND11_TOSTRING(PYBIND11_VERSION_MAJOR) "." PYBIND11_TOSTRING(
      PYBIND11_VERSION_MINOR) "." PYBIND11_TOSTRING(PYBIND11_VERSION_MICRO);
  return info;
}

}  // namespace

void bind_runtime(py::module_& module) {
  watch_signals();
  module.attr("MAX_THREADS") = kMaxThreads;
  module.def("isas", [] { return py::tuple(py::cast(available_isas())); });
  module.def("compiled_isas", [] { return py::tuple(py::cast(compiled_isas())); });
  module.def("isa", &current_isa);
  module.def("set_isa", &set_isa);
  module.def("get_num_threads", &num_threads);
  module.def("set_num_threads", &set_num_threads);
  module.def("begin_pass", &begin_pass);
  module.def("end_pass", &end_pass);
  module.def("keep_all_results", &keep_all_results, py::arg("begins"), py::pos_only());
  module.def("result_memory", [] {
    const ResultMemory now = result_memory_now();
    return py::make_tuple(now.in_use, now.kept, now.made);
  });
  module.def("default_num_threads", &default_num_threads);
  module.def("cgroup_cpus", &cgroup_cpus);
  module.def("build_info", &build_info);
}

}  // namespace simdformer

// For threadpoolctl, which finds them by name in the loaded library.
#define SF_EXPORT extern "C" __attribute__((visibility("default")))
SF_EXPORT int simdformer_get_num_threads() { return simdformer::num_threads(); }
SF_EXPORT void simdformer_set_num_threads(int n) { simdformer::set_num_threads(n); }
