// Choices of the current GPU (kept_choices.h), in one file for each GPU model, driver and version of the library:
//     $XDG_CACHE_HOME/trainctl/<what>/<GPU>-<multiprocessors>-<driver>-<library>
#pragma once

#include <string>

#include "engine/ops/cuda/kept_choices.h"

namespace trainctl::cuda {

/// `what`: products, convolutions. Lives as long as the process.
KeptChoices& choices_of_device(const std::string& what, const std::string& library_version);

}  // namespace trainctl::cuda
