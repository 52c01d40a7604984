#include "cluster/telemetry/wait_fields.h"

namespace ringmark::cluster {

nlohmann::ordered_json step_fields(const comm::Step& step) {
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  if (step.layer >= 0) fields["layer"] = step.layer;
  if (!step.stage.empty()) fields["stage"] = step.stage;
  if (!step.unit.empty()) fields["step"] = {{"unit", step.unit}, {"number", step.number}};
  return fields;
}

nlohmann::ordered_json wait_fields(const comm::WaitNote& wait) {
  nlohmann::ordered_json fields = step_fields(wait.step);
  fields["wait"] = wait.stage;
  fields["peers"] = wait.peers;
  fields["waited_seconds"] = wait.seconds;
  if (wait.bytes >= 0) fields["bytes_outstanding"] = wait.bytes;
  return fields;
}

}  // namespace ringmark::cluster
