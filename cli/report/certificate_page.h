// A certificate of `trainctl verify` as one self-contained HTML file.
#pragma once

#include <string>

#include "engine/train/verification/certificate.h"

namespace trainctl {

std::string certificate_page(const Certificate& certificate);

}  // namespace trainctl
