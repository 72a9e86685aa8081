# Where the headers of a library are: find_headers(NAME MINIMUM BELOW PINNED SHA256) sets NAME_HEADERS to the include
# directory with MINIMUM <= version < BELOW, and NAME_VERSION_FOUND, from the first of
#   NAME_ROOT, when it is given: an install prefix, a source tree, or the folder of headers itself;
#   the system's package, or the directories where the compiler looks anyway;
#   a download of version PINNED.
# What cannot be had is gathered in `missing_headers`, and why in `missing_because`; require_headers() then ends.
# Nothing of these libraries is ever linked: xtensor::optimize, for one, brings -march=native.
#
# The way is FetchContent's with FIND_PACKAGE_ARGS, walked by hand. There, a download that fails ends CMake at once,
# before anyone could say what else helps, and a package of the wrong version is taken, or is no reason to go on to
# the next way (asked for a version, xsimd's package answers for its own major alone).

set(missing_headers "")
set(missing_because "")

# Sets `version` to that of the headers of `name` under `place`, or to nothing.
function(read_version name place)
  string(TOUPPER ${name} upper)
  set(version "")
  file(GLOB configs "${place}/${name}/${name}_config.hpp" "${place}/${name}/*/${name}_config.hpp")
  foreach(config IN LISTS configs)
    file(STRINGS "${config}" lines REGEX "define +${upper}_VERSION_(MAJOR|MINOR|PATCH)")
    string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" version "${lines}")
  endforeach()
  return(PROPAGATE version)
endfunction()

# Sets `found` to the headers of a release's archive, downloaded once for a build folder; else adds to `seen` why not.
function(download name release sha256)
  set(tree "${CMAKE_BINARY_DIR}/headers/${name}-${release}")
  set(url "${SIMDFORMER_MIRROR}/${name}/archive/refs/tags/${release}.tar.gz")
  if(EXISTS "${tree}/include")
    # downloaded before
  elseif(NOT SIMDFORMER_DOWNLOAD)
    string(APPEND seen "; downloads are switched off")
  elseif(missing_because MATCHES "downloading [^ ]+ failed")
    string(APPEND seen "; downloads do not work here")
  else()
    message(STATUS "downloading ${name} ${release}")
    file(DOWNLOAD "${url}" "${tree}.tar.gz" STATUS status TIMEOUT 60 INACTIVITY_TIMEOUT 10)
    list(POP_FRONT status failed)
    if(failed)
      string(APPEND seen "; downloading ${url} failed: ${status}")
    else()
      file(SHA256 "${tree}.tar.gz" hash)
      if(hash STREQUAL sha256)
        file(ARCHIVE_EXTRACT INPUT "${tree}.tar.gz" DESTINATION "${CMAKE_BINARY_DIR}/headers")
      else()
        string(APPEND seen "; ${url} is not the file it should be (SHA-256 ${hash}, expected ${sha256})")
      endif()
    endif()
    file(REMOVE "${tree}.tar.gz")
  endif()
  if(EXISTS "${tree}/include")
    set(found "${tree}/include")
  endif()
  return(PROPAGATE found seen)
endfunction()

function(find_headers name minimum below pinned sha256)
  string(TOUPPER ${name} upper)
  set(root "${${name}_ROOT}" "${SIMDFORMER_${upper}_ROOT}" "$ENV{${name}_ROOT}")
  list(FILTER root EXCLUDE REGEX "^$")
  set(places "")
  set(seen "not installed")
  if(root)
    list(GET root 0 root)
    get_filename_component(root "${root}" ABSOLUTE)
    set(places "${root}/include" "${root}")
    if(root MATCHES "/${name}$")
      list(APPEND places "${root}/..")
    endif()
    set(seen "no ${name} headers under ${name}_ROOT=${root}")
  elseif(NOT CMAKE_DISABLE_FIND_PACKAGE_${name})
    find_package(${name} CONFIG QUIET)
    set(places ${${name}_INCLUDE_DIRS} ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
  endif()

  set(found "")
  foreach(place IN LISTS places)
    read_version(${name} "${place}")
    if(version AND version VERSION_GREATER_EQUAL minimum AND version VERSION_LESS below)
      get_filename_component(found "${place}" ABSOLUTE)
      break()
    elseif(version)
      set(seen "version ${version} in ${place} is out of that range")
    endif()
  endforeach()
  if(NOT found AND NOT root)
    set(version ${pinned})
    download(${name} ${pinned} ${sha256})
  endif()

  if(found)
    message(STATUS "${name} ${version}: ${found}")
    set(${name}_HEADERS "${found}")
    set(${name}_VERSION_FOUND ${version})
  else()
    list(APPEND missing_headers ${name})
    string(APPEND missing_because "  ${name} (at least ${minimum}, below ${below}): ${seen}\n")
  endif()
  return(PROPAGATE ${name}_HEADERS ${name}_VERSION_FOUND missing_headers missing_because)
endfunction()

# Stops with the one message that says what is missing, why, and what to do.
function(require_headers)
  if(missing_headers)
    list(JOIN missing_headers ", " names)
    list(TRANSFORM missing_headers REPLACE "(.+)" "-C cmake.define.\\1_ROOT=DIR" OUTPUT_VARIABLE roots)
    list(JOIN roots " " roots)
    message(FATAL_ERROR
      "simdformer needs C++ header libraries that were not found: ${names}\n"
      "${missing_because}"
      "On Debian or Ubuntu install them:\n"
      "  sudo apt-get install libxsimd-dev libxtensor-dev\n"
      "Elsewhere unpack their sources and say where each lies:\n"
      "  pip install . ${roots}\n")
  endif()
endfunction()
