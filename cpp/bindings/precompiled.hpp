// What every file of bindings includes and none changes; each includes it itself too.
#pragma once

#include <pybind11/cast.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>
