// The fields that the pre-tokenizer and the decoder Metaspace share.
#pragma once

#include <string>

#include "engine/text/json_part.h"

namespace trainctl {

enum class PrependScheme : uint8_t { first, never, always };

struct Metaspace {
  std::string replacement;
  PrependScheme scheme = PrependScheme::always;
};

inline Metaspace read_metaspace_fields(const JsonPart& part) {
  Metaspace space{part.text("replacement", "\xE2\x96\x81"), PrependScheme::always};
  const bool adds = part.boolean("add_prefix_space", true);
  const std::string scheme = part.text("prepend_scheme", adds ? "always" : "never");
  if (scheme == "first")
    space.scheme = PrependScheme::first;
  else if (scheme == "never")
    space.scheme = PrependScheme::never;
  else if (scheme != "always")
    part.at("prepend_scheme").fail("'" + scheme + "' is not supported");
  return space;
}

}  // namespace trainctl
