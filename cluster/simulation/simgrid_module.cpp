#include "cluster/simulation/simgrid_module.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <simgrid/s4u.hpp>
#include <string>

#include "cluster/simulation/flows.h"

namespace ringmark::cluster {
namespace {

namespace sg = simgrid::s4u;

// A processor's work is given in seconds: so many "flops" are one.
constexpr double kPerSecond = 1e9;
// Of what only carries a flow whose limits are elsewhere.
constexpr double kNoLimit = 1e18;
constexpr int kStackKib = 128;

void configure() {
  // Flows take bytes over bandwidth plus latency: no header overhead, no congestion window, no back traffic. What a
  // protocol leaves of a link is in the link's rates already.
  sg::Engine::set_config("network/model:CM02");
  sg::Engine::set_config("network/TCP-gamma:0");
  sg::Engine::set_config("network/crosstraffic:0");
  sg::Engine::set_config("network/weight-S:0");
  sg::Engine::set_config("surf/precision:1e-10");
  sg::Engine::set_config(fmt::format("contexts/stack-size:{}", kStackKib));
  sg::Engine::set_config("contexts/guard-size:0");
}

class Platform {
 public:
  explicit Platform(const Topology& topology) : topology_(topology), endpoints_(topology) {
    zone_ = sg::create_star_zone("cluster");
    anywhere_ = add_host("anywhere", {}, {});
    add_leaves();
    for (int endpoint = 0; endpoint < endpoints_.count(); ++endpoint) add_endpoint(endpoint);
    if (topology.shared_cores > 0) {
      cores_ = zone_->create_host("cores", kPerSecond);
      cores_->set_core_count(topology.shared_cores);
    }
    zone_->seal();
  }

  sg::Host* actor_host() const { return anywhere_; }
  sg::Host* endpoint(int number) const { return number < 0 ? anywhere_ : hosts_[static_cast<std::size_t>(number)]; }
  // None: every rank has its own processor.
  sg::Host* cores() const { return cores_; }

 private:
  void add_leaves() {
    if (!topology_.has_leaves()) return;
    const double nodes = topology_.leaf_nodes, rails = topology_.rails;
    const double rate = nodes * rails * topology_.outside.streamed / topology_.oversubscription;
    for (int leaf = 0; leaf * topology_.leaf_nodes < topology_.nodes; ++leaf) {
      leaf_up_.push_back(zone_->create_link(fmt::format("leaf{}up", leaf), rate)->seal());
      leaf_down_.push_back(zone_->create_link(fmt::format("leaf{}down", leaf), rate)->seal());
    }
  }

  void add_endpoint(int number) {
    const LinkRate& rate = endpoints_.link(number);
    // Latency once a flow: on the way down.
    std::vector<sg::Link*> up = {zone_->create_link(fmt::format("up{}", number), rate.streamed)->seal()};
    std::vector<sg::Link*> down = {
        zone_->create_link(fmt::format("down{}", number), rate.streamed)->set_latency(rate.latency)->seal()};
    if (!leaf_up_.empty() && !endpoints_.is_port(number)) {
      const auto leaf = static_cast<std::size_t>((number - topology_.ranks()) / topology_.rails / topology_.leaf_nodes);
      up.push_back(leaf_up_[leaf]);
      down.push_back(leaf_down_[leaf]);
    }
    hosts_.push_back(add_host(fmt::format("endpoint{}", number), up, down));
  }

  sg::Host* add_host(const std::string& name, const std::vector<sg::Link*>& up, const std::vector<sg::Link*>& down) {
    sg::Host* host = zone_->create_host(name, kPerSecond);
    const auto as_route = [&](const std::vector<sg::Link*>& links) {
      std::vector<sg::LinkInRoute> route;
      for (sg::Link* link : links) route.emplace_back(link);
      if (route.empty())
        route.emplace_back(zone_->create_link(name + (&links == &up ? "-up" : "-down"), kNoLimit)->seal());
      return route;
    };
    zone_->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, as_route(up), false);
    zone_->add_route(nullptr, host->get_netpoint(), nullptr, nullptr, as_route(down), false);
    return host->seal();
  }

  const Topology& topology_;
  Endpoints endpoints_;
  sg::NetZone* zone_ = nullptr;
  sg::Host* anywhere_ = nullptr;
  sg::Host* cores_ = nullptr;
  std::vector<sg::Link*> leaf_up_, leaf_down_;
  std::vector<sg::Host*> hosts_;  // by endpoint
};

// What all actors share.
struct World {
  const Topology& topology;
  const std::vector<RankSchedule>& schedules;
  const Platform& platform;
  sg::BarrierPtr barrier;
  const ServedSeconds* served = nullptr;  // where flows are aggregated
  std::vector<RankTimes>& times;
};

class Actor {
 public:
  Actor(World& world, int rank) : world_(world), rank_(rank), times_(world.times[static_cast<std::size_t>(rank)]) {}

  void run() {
    const std::vector<Step>& steps = world_.schedules[static_cast<std::size_t>(rank_)].steps;
    for (step_ = 0; step_ < steps.size(); ++step_) {
      const Step& step = steps[step_];
      if (step.kind == Step::kCompute) compute(step.stage, step.seconds);
      if (step.kind == Step::kMeet) meet(Stage::kMeet);
      if (step.kind == Step::kWaves) run_waves(step);
    }
    times_.end = sg::Engine::get_clock();
  }

 private:
  double& seconds(Stage stage) { return times_.seconds[static_cast<std::size_t>(stage)]; }

  void compute(Stage stage, double length) {
    if (length <= 0.0) return;
    const double begin = sg::Engine::get_clock();
    if (world_.platform.cores() == nullptr) {
      sg::this_actor::sleep_for(length);
    } else {
      std::vector<sg::ExecPtr> threads;
      for (int thread = 0; thread < world_.topology.threads; ++thread) {
        threads.push_back(sg::this_actor::exec_init(length * kPerSecond)->set_host(world_.platform.cores()));
        threads.back()->start();
      }
      for (const sg::ExecPtr& thread : threads) thread->wait();
    }
    seconds(stage) += sg::Engine::get_clock() - begin;
  }

  // A barrier of messages: as many in a row as the ranks can be halved.
  void meet(Stage stage) {
    if (!world_.barrier) return;
    const double begin = sg::Engine::get_clock();
    world_.barrier->wait();
    const LinkRate& link = world_.topology.nodes > 1 ? world_.topology.outside : world_.topology.inside;
    const int rounds = std::bit_width(static_cast<unsigned>(world_.topology.ranks() - 1));
    if (link.latency > 0.0) sg::this_actor::sleep_for(rounds * link.latency);
    seconds(stage) += sg::Engine::get_clock() - begin;
  }

  // As BlockWaves::run: the reads of the next wave start before the current one is computed with.
  void run_waves(const Step& step) {
    for (std::size_t wave = 0; wave < step.waves.size(); ++wave) {
      if (wave == 0) start(step, 0);
      wait(step.waiting);
      if (wave + 1 < step.waves.size()) start(step, wave + 1);
      compute(step.stage, step.waves[wave].seconds);
    }
  }

  void start(const Step& step, std::size_t wave) {
    if (step.together) meet(Stage::kMeet);
    std::vector<Flow> flows = flows_of(world_.topology, rank_, step, step.waves[wave]);
    if (world_.served != nullptr) flows = aggregate(world_.topology, flows, *world_.served, step_, wave);
    for (const Flow& flow : flows) {
      const auto payload = static_cast<std::uint64_t>(std::max(1.0, flow.link_bytes));
      sg::CommPtr comm = sg::Comm::sendto_init();
      // The ends come last: a flow that has both of them starts.
      comm->set_payload_size(payload);
      comm->set_source(world_.platform.endpoint(flow.from))->set_destination(world_.platform.endpoint(flow.to));
      pending_.push_back(std::move(comm));
      not_before_ = std::max(not_before_, sg::Engine::get_clock() + flow.seconds_at_least);
    }
  }

  void wait(Stage stage) {
    const double begin = sg::Engine::get_clock();
    for (const sg::CommPtr& comm : pending_) comm->wait();
    pending_.clear();
    if (not_before_ > sg::Engine::get_clock()) sg::this_actor::sleep_until(not_before_);
    seconds(stage) += sg::Engine::get_clock() - begin;
  }

  World& world_;
  int rank_;
  RankTimes& times_;
  std::size_t step_ = 0;
  std::vector<sg::CommPtr> pending_;
  double not_before_ = 0.0;  // joined flows: when their owners can have served them
};

}  // namespace
}  // namespace ringmark::cluster

using namespace ringmark::cluster;

void ringmark_simulate(const Topology& topology, const std::vector<RankSchedule>& schedules, bool aggregated,
                       std::vector<RankTimes>& times) {
  std::string name = "ringmark", quiet = "--log=root.thresh:error";
  std::vector<char*> arguments = {name.data(), quiet.data(), nullptr};
  int count = 2;
  sg::Engine engine(&count, arguments.data());
  configure();
  const Platform platform(topology);
  std::unique_ptr<ServedSeconds> served;
  if (aggregated) served = std::make_unique<ServedSeconds>(topology, schedules);
  World world{topology, schedules, platform, nullptr, served.get(), times};
  if (schedules.size() > 1) world.barrier = sg::Barrier::create(static_cast<unsigned>(schedules.size()));
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    sg::Actor::create(fmt::format("rank{}", rank), platform.actor_host(), [&world, rank] { Actor(world, rank).run(); });
  }
  engine.run();
}
