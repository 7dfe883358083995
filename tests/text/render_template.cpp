// render_template TEMPLATE: reads JSON objects of variables, one per line, and writes {"text", "generated"} or
// {"error"} for each. For tests that compare with jinja2.
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "engine/text/jinja/render.h"

int main(int argc, char** argv) {
  using namespace trainctl;
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  std::ostringstream source;
  source << file.rdbuf();
  try {
    const jinja::Template chat(source.str());
    for (std::string line; std::getline(std::cin, line);) {
      nlohmann::json out;
      try {
        const jinja::Rendered result = chat.render(jinja::Value::from(nlohmann::ordered_json::parse(line)).dict());
        out["text"] = result.text;
        out["generated"] = nlohmann::json::array();
        for (const auto& range : result.generated)
          out["generated"].push_back(result.text.substr(range.begin, range.end - range.begin));
      } catch (const std::exception& error) {
        out["error"] = error.what();
      }
      std::cout << out.dump() << "\n";
    }
  } catch (const std::exception& error) {
    std::cout << nlohmann::json{{"refused", error.what()}}.dump() << "\n";
  }
  return 0;
}
