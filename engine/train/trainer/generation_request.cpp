// The texts that `trainctl generate` asks for.
#include "engine/train/trainer/generation_request.h"

#include <nlohmann/json.hpp>

namespace trainctl {

std::string GenerationRequest::to_json() const {
  nlohmann::ordered_json json;
  json["max_tokens"] = max_tokens;
  json["rows"] = size.rows;
  json["positions"] = size.positions;
  json["sampling"] = {{"temperature", sampling.temperature},
                      {"top_k", sampling.top_k},
                      {"top_p", sampling.top_p},
                      {"repetition_penalty", sampling.repetition_penalty},
                      {"seed", sampling.seed}};
  json["end_tokens"] = end_tokens;
  json["stops"] = stops;
  json["tokenizer"] = tokenizer;
  json["format"] = static_cast<int>(format);
  json["prompts"] = nlohmann::ordered_json::array();
  for (const GenerationPrompt& prompt : prompts)
    json["prompts"].push_back({{"text", prompt.text}, {"tokens", prompt.tokens}});
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

GenerationRequest GenerationRequest::of_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  GenerationRequest request;
  json.at("max_tokens").get_to(request.max_tokens);
  json.at("rows").get_to(request.size.rows);
  json.at("positions").get_to(request.size.positions);
  const auto& sampling = json.at("sampling");
  sampling.at("temperature").get_to(request.sampling.temperature);
  sampling.at("top_k").get_to(request.sampling.top_k);
  sampling.at("top_p").get_to(request.sampling.top_p);
  sampling.at("repetition_penalty").get_to(request.sampling.repetition_penalty);
  sampling.at("seed").get_to(request.sampling.seed);
  json.at("end_tokens").get_to(request.end_tokens);
  json.at("stops").get_to(request.stops);
  json.at("tokenizer").get_to(request.tokenizer);
  request.format = static_cast<GenerationFormat>(json.at("format").get<int>());
  for (const auto& prompt : json.at("prompts"))
    request.prompts.push_back({prompt.at("text"), prompt.at("tokens").get<std::vector<int32_t>>()});
  return request;
}

}  // namespace trainctl
