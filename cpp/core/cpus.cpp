// How many threads are worth having: the CPUs of the affinity mask, or what the cgroups grant if that is
// less.
#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "core/parallel.hpp"

#if defined(__linux__)
#include <sched.h>

#include <cerrno>
#endif

namespace simdformer {
namespace {

int affinity_cpus() {
#if defined(__linux__)
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {  // EINVAL says that the kernel's mask is longer
    cpu_set_t* mask = CPU_ALLOC(static_cast<size_t>(cpus));
    if (!mask) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus));
    const bool known = sched_getaffinity(0, bytes, mask) == 0;
    const bool too_short = !known && errno == EINVAL;
    const int count = known ? CPU_COUNT_S(bytes, mask) : 0;
    CPU_FREE(mask);
    if (known) return count;
    if (!too_short) break;
  }
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

bool lists_cpu(const std::string& controllers) {
  for (const std::string& name : split(controllers, ','))
    if (name == "cpu") return true;
  return false;
}

// CPUs that one cgroup directory grants, 0 = no limit.
int quota_of(const std::string& directory) {
  double quota = -1, period = 0;
  std::string word;
  if (std::ifstream v2(directory + "/cpu.max"); v2 >> word >> period) {
    if (word != "max") std::istringstream(word) >> quota;
  } else {
    std::ifstream(directory + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(directory + "/cpu.cfs_period_us") >> period;
  }
  if (!(quota > 0) || !(period > 0)) return 0;
  const double cpus = quota / period;
  return cpus >= kMaxThreads ? kMaxThreads : static_cast<int>(cpus) + (cpus > static_cast<int>(cpus));
}

// The least that a cgroup and those above it grant; `mount` is where their hierarchy is seen, `path` the way
// down.
int least_quota(const std::string& mount, std::string path) {
  int least = 0;
  for (;;) {
    const int here = quota_of(mount + path);
    if (here > 0 && (least == 0 || here < least)) least = here;
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

}  // namespace

int cgroup_cpus(const std::string& root) {
  // "id:controllers:path"; version 2 has no controllers
  std::string path_v1, path_v2;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) path_v2 = line.substr(second + 1);
    if (lists_cpu(controllers)) path_v1 = line.substr(second + 1);
  }

  // "id parent device root mount options ... - type source superoptions"
  int least = 0;
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> left = split(line.substr(0, dash), ' '),
                                   right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    const bool v2 = right[0] == "cgroup2", v1 = right[0] == "cgroup" && lists_cpu(right[2]);
    if (!v1 && !v2) continue;
    // In a container the mount may show only the part of the hierarchy below `top`, or a path that is not in
    // it.
    std::string path = v2 ? path_v2 : path_v1;
    const std::string& top = left[3];
    if (top != "/" && path.compare(0, top.size(), top) == 0) path.erase(0, top.size());
    if (path == "/" || path.find("..") != std::string::npos) path.clear();
    const int here = least_quota(root + left[4], path);
    if (here > 0 && (least == 0 || here < least)) least = here;
  }
  return least;
}

int default_num_threads() noexcept {
  int cpus = 1;
  try {
    cpus = affinity_cpus();
    const int granted = cgroup_cpus();
    if (granted > 0 && granted < cpus) cpus = granted;
  } catch (...) {  // no memory to read a line: one thread is always right
  }
  return cpus < 1 ? 1 : cpus > kMaxThreads ? kMaxThreads : cpus;
}

}  // namespace simdformer
