// The collectives of a plan, of a program and of the runtime.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainctl {

enum class Collective : uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all, broadcast };
std::string_view to_string(Collective kind);

}  // namespace trainctl
