// The parameters and states of one rank, as text: `trainctl show weights`.
#pragma once

#include <string>

#include "engine/compile/program.h"

namespace trainctl {

std::string render_weights(const Program& program);

}  // namespace trainctl
