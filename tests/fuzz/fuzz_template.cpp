// libFuzzer target: any bytes are rendered as a chat template, or cause an EnvError.
#include <string_view>

#include "engine/base/error.h"
#include "engine/text/jinja/render.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainctl;
  using jinja::Dict;
  using jinja::List;
  static const Dict variables = {
      {"messages", List{Dict{{"role", "user"}, {"content", "Grüße"}}, Dict{{"role", "assistant"}, {"content", " 1 "}}}},
      {"bos_token", "<s>"},
      {"add_generation_prompt", true}};
  try {
    (void)jinja::Template({reinterpret_cast<const char*>(data), size}).render(variables);
  } catch (const EnvError&) {
  }
  return 0;
}
