// Polls the metadata service of a cloud for notices that this host will be reclaimed (launch.spot_notices).
//
//   aws    PUT /latest/api/token, then GET /latest/meta-data/spot/instance-action: 404, or {"action", "time"} (IMDSv2)
//   gcp    GET /computeMetadata/v1/instance/preempted: FALSE or TRUE
//   azure  GET /metadata/scheduledevents: a list of events; those count whose type is Preempt or
//          Terminate and name this host
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/spec/launch_spec.h"

namespace trainctl {

/// Exit code of a run that has stopped because of a notice: it can be resumed elsewhere (EX_TEMPFAIL of sysexits.h).
inline constexpr int kExitRequeue = 75;

struct SpotSettings {
  SpotNotices notices = SpotNotices::none;
  std::string address;  ///< HOST:PORT; empty: that of the cloud
};

/// Returns what the body of a response announces: "terminate at 2026-11-29T17:02:00Z"; empty: nothing. `host`: the name
/// of this host, for azure; empty: unknown, so that every event counts.
std::string spot_notice(SpotNotices notices, std::string_view body, std::string_view host = {});

class SpotWatch {
 public:
  /// Calls `on_notice` once, with the announcement, and `on_silence` once if the service does not answer.
  using Report = std::function<void(const std::string&)>;
  SpotWatch(boost::asio::io_context& loop, const SpotSettings& settings, Report on_notice, Report on_silence);
  ~SpotWatch();

 private:
  class Poll;
  std::shared_ptr<Poll> poll_;
};

}  // namespace trainctl
