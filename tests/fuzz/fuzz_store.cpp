// libFuzzer target: any bytes are parsed as a frame of the store's protocol or refused. A parsed request encodes to the
// same bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/protocol.h"
#include "launcher/rank_error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trainctl;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  if (const auto request = store::parse_request(body)) {
    const std::string again = store::encode(*request);
    if (std::string_view(again).substr(4) != body) std::abort();
  }
  if (const auto reply = store::parse_reply(body)) {
    const std::string again = store::encode(*reply);
    if (std::string_view(again).substr(4) != body) std::abort();
  }
  // The launcher also reads a rank's error.json.
  if (const auto error = parse_rank_error(body)) (void)to_json(*error);
  return 0;
}
