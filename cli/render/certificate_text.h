// A certificate of `trainctl verify` for the terminal.
#pragma once

#include <cstddef>
#include <string>

#include "engine/train/verification/certificate.h"

namespace trainctl {

/// A table of checks, what is wrong, and a line with the verdict. `width`: columns; 0: unlimited.
std::string certificate_text(const Certificate& certificate, size_t width);

/// "verified on 2026-11-29 12:30:00 UTC by trainctl 1.0: 9 checks passed".
std::string certificate_line(const Certificate& certificate);

}  // namespace trainctl
