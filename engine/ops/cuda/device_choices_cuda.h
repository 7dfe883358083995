// Choices of the current GPU (kept_choices.h), in one file for each GPU model, driver and version of the library:
//     $XDG_CACHE_HOME/trainctl/<what>/<GPU>-<multiprocessors>-<driver>-<library>
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/ops/cuda/kept_choices.h"

namespace trainctl::cuda {

/// `what`: products, convolutions. Lives as long as the process.
KeptChoices& choices_of_device(const std::string& what, const std::string& library_version);

/// Returns the fastest candidate; they are in the order in which a library suggests them. `measure` returns
/// milliseconds; negative: the candidate could not run.
size_t fastest(size_t candidates, const std::function<float(size_t)>& measure);

}  // namespace trainctl::cuda
