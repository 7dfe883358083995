// `trainctl report --serve`: serves the page and its data over HTTP to browsers on this host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace trainctl {

struct Served {
  std::function<std::string()> page;  ///< GET /
  std::function<std::string()> data;  ///< GET /data: JSON
};

/// Serves the page on 127.0.0.1 until SIGINT, SIGTERM or SIGHUP. Port 0 selects any free port; `ready` receives the
/// port. Requests that name another host are refused: a web page that the user visits could have sent them. Throws
/// EnvError if the port is in use.
void serve_page(uint16_t port, const Served& served, const std::function<void(uint16_t port)>& ready);

}  // namespace trainctl
