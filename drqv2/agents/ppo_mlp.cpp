// PPO's update for the policies of drqv2/nn/mlp.cpp, which comes before this file.
//
// Small networks spend most of their time between torch's operations. What is computed is what PPOAgent._learn does.
namespace {

struct Batch {  // [segments, horizon, ...]
    int64_t segments, horizon;
    const Real* obs;
    const void* actions;  // int64_t or Real
    const Real *log_probs, *rewards, *dones, *live, *followed;
    Real *values, *ratio;  // may be written for the steps of a minibatch
};

struct Settings {
    Real gamma, lambda, rho_clip, c_clip, clip_coef, vf_coef, vf_clip, ent_coef, max_norm, alpha, beta, target_kl;
    int64_t minibatches, in_pass, drawn, accumulate;  // in_pass: minibatches of a pass; drawn: segments of a minibatch
};

struct Adam {
    Real *mean[kParts], *square[kParts];
    Real lr, beta1, beta2, eps;
    int64_t steps;  // before this update
};

// Add the gradients of a minibatch to `to` and its metrics, in the order of METRICS, to `sums`; write its values and
// ratios, if asked to. See PPOAgent._accumulate.
void accumulate(const Policy& net, const Batch& batch, const Settings& set, int64_t group, const int64_t* rows,
                const Real* weights, const Real* advantages, bool write, Real* const* to, double* sums) {
    thread_local Pass pass;
    const int64_t horizon = batch.horizon, width = net.sizes ? net.groups : net.outputs;
    const size_t bytes = net.sizes ? sizeof(int64_t) : sizeof(Real);
    pass.start(net, set.drawn * horizon);
    double number = 0, total = 0, squares = 0;
    for (int64_t b = 0; b < pass.rows; ++b) {
        const int64_t at = rows[b / horizon] * horizon + b % horizon;
        std::copy(batch.obs + at * net.inputs, batch.obs + (at + 1) * net.inputs, pass.x.begin() + b * pass.in);
        number += batch.live[at], total += advantages[at];  // 0 where live is
    }
    number = std::max(number, 1.0);
    const double mean = total / number;
    for (int64_t b = 0; b < pass.rows; ++b) {
        const int64_t at = rows[b / horizon] * horizon + b % horizon;
        const double centred = (advantages[at] - mean) * batch.live[at];
        squares += centred * centred;
    }
    const double spread = std::sqrt(squares / std::max(number - 1, 1.0)) + 1e-8;
    pass.forward(net);

    pass.d_y.assign(pass.rows * pass.out, 0);
    for (int64_t b = 0; b < pass.rows; ++b) {
        const int64_t at = rows[b / horizon] * horizon + b % horizon;
        const void* action = static_cast<const char*>(batch.actions) + at * width * bytes;
        Real entropy, *y = &pass.y[b * pass.out], *d_y = &pass.d_y[b * pass.out];
        const Real live = batch.live[at], share = live / Real(number), shared = share / group;
        const Real log_ratio = log_prob(net, y, action, entropy) - batch.log_probs[at], ratio = std::exp(log_ratio);
        const Real advantage = weights[b / horizon] * Real((advantages[at] - mean) * live / spread);
        const Real limited = std::min(std::max(ratio, 1 - set.clip_coef), 1 + set.clip_coef);
        const Real gain = advantage * ratio, clipped = advantage * limited;
        backward(net, y, action, clipped < gain ? 0 : -gain * shared, -set.ent_coef * shared, d_y, to[kLogStd]);

        const Real value = y[net.outputs], moved = value - batch.values[at];
        const Real error = moved - advantages[at];  // the target is the advantage plus the old value
        const Real near = std::min(std::max(moved, -set.vf_clip), set.vf_clip) - advantages[at];
        const bool flat = std::abs(moved) > set.vf_clip && std::abs(near) > std::abs(error);
        d_y[net.outputs] = flat ? 0 : set.vf_coef * shared * error;

        const Real far = std::abs(ratio - 1) > set.clip_coef, value_loss = std::max(error * error, near * near) / 2;
        const Real terms[6] = {-std::min(gain, clipped), value_loss, entropy, -log_ratio, far, ratio};
        for (int k = 0; k < 6; ++k) sums[k] += double(terms[k]) * share;
        if (write) batch.values[at] = value * batch.followed[at], batch.ratio[at] = ratio * live;
    }
    pass.backward(net, to);
}

// As drqv2.nn.returns.puff_advantage.
void puff_advantage(const Batch& batch, const Settings& set, Real* out) {
    for (int64_t s = 0; s < batch.segments; ++s) {
        Real next = out[(s + 1) * batch.horizon - 1] = 0;
        for (int64_t t = (s + 1) * batch.horizon - 2; t >= s * batch.horizon; --t) {
            const Real goes_on = set.gamma * (1 - batch.dones[t + 1]), ratio = batch.ratio[t];
            const Real target = batch.rewards[t + 1] + goes_on * batch.values[t + 1];
            const Real delta = std::min(ratio, set.rho_clip) * (target - batch.values[t]);
            out[t] = next = delta + set.lambda * goes_on * std::min(ratio, set.c_clip) * next;
        }
    }
}

// As PPOAgent._draw.
void draw(const Batch& batch, const Settings& set, const Real* advantages, const Real* noise,
          std::vector<int64_t>& rows, std::vector<Real>& weights) {
    std::vector<Real> p(batch.segments), score(batch.segments);
    Real total = 0;
    for (int64_t s = 0; s < batch.segments; ++s) {
        Real sum = 0;
        for (int64_t t = 0; t < batch.horizon; ++t) sum += std::abs(advantages[s * batch.horizon + t]);
        const Real priority = std::pow(sum, set.alpha);
        total += p[s] = std::isfinite(priority) ? priority : 0;
    }
    rows.resize(batch.segments), weights.resize(set.drawn);
    for (int64_t s = 0; s < batch.segments; ++s) {
        p[s] = (p[s] + Real(1e-6)) / (total + Real(1e-6));
        rows[s] = s, score[s] = p[s] / noise[s];
    }
    std::partial_sort(rows.begin(), rows.begin() + set.drawn, rows.end(),
                      [&](int64_t i, int64_t j) { return score[i] > score[j]; });
    for (int64_t k = 0; k < set.drawn; ++k) weights[k] = std::pow(batch.segments * p[rows[k]], -set.beta);
}

// Clip the gradients by their norm and take a step of Adam; set them to 0.
void step(const Policy& net, const Settings& set, const Adam& adam, int64_t number, const int64_t* sizes,
          std::vector<Real>& gradients) {
    double squares = 0;
    for (const Real g : gradients) squares += double(g) * g;
    const double factor = set.max_norm / (std::sqrt(squares) + 1e-6);
    const Real scale = factor >= 1 ? 1 : Real(factor);
    const Real rate = Real(adam.lr / (1 - std::pow(double(adam.beta1), double(number))));
    const Real root = Real(std::sqrt(1 - std::pow(double(adam.beta2), double(number))));
    const Real* gradient = gradients.data();
    for (int part = 0; part < kParts; gradient += sizes[part++]) {
        Real *weight = net.weights[part], *mean = adam.mean[part], *square = adam.square[part];
        for (int64_t i = 0; i < sizes[part]; ++i) {
            const Real g = gradient[i] * scale;
            mean[i] += (1 - adam.beta1) * (g - mean[i]);
            square[i] = adam.beta2 * square[i] + (1 - adam.beta2) * g * g;
            weight[i] -= rate * mean[i] / (std::sqrt(square[i]) / root + adam.eps);
        }
    }
    std::fill(gradients.begin(), gradients.end(), Real(0));
}

}  // namespace

// As PPOAgent._learn: learn from minibatches that `noise` [minibatches, segments] draws, or from the segments `given`
// [minibatches, drawn] with advantages that are `known` [segments, horizon]; write mean metrics [6].
// Stop after a pass whose mean approximate KL divergence exceeds the target. Return the steps of Adam.
extern "C" int64_t learn(const Policy* net, const Batch* batch, const Settings* set, const Adam* adam,
                         const Real* noise, const int64_t* given, const Real* known, double* metrics) {
    const int64_t hidden = net->hidden, outputs = net->outputs;
    const int64_t sizes[kParts] = {hidden * net->inputs, hidden,  hidden * hidden, hidden, outputs * hidden, outputs,
                                   hidden,               int64_t(1), net->sizes ? 0 : outputs};
    std::vector<Real> advantages(batch->segments * batch->horizon), weights(set->drawn, Real(1));
    std::vector<Real> gradients(std::accumulate(sizes, sizes + kParts, int64_t(0)));
    std::vector<int64_t> rows;
    Real* to[kParts] = {gradients.data()};
    for (int part = 1; part < kParts; ++part) to[part] = to[part - 1] + sizes[part - 1];
    if (given) std::copy(known, known + advantages.size(), advantages.begin());
    int64_t steps = 0, k = 0;
    double before = 0;  // the sum of approximate KL divergences at the start of a pass
    std::fill(metrics, metrics + 6, 0.0);
    while (k < set->minibatches) {
        if (given) {
            rows.assign(given + k * set->drawn, given + (k + 1) * set->drawn);
        } else {
            puff_advantage(*batch, *set, advantages.data());
            draw(*batch, *set, advantages.data(), noise + k * batch->segments, rows, weights);
        }
        const int64_t group = std::min(set->accumulate, set->minibatches - k / set->accumulate * set->accumulate);
        accumulate(*net, *batch, *set, group, rows.data(), weights.data(), advantages.data(), !given, to, metrics);
        if (++k % set->accumulate == 0 || k == set->minibatches)
            step(*net, *set, *adam, adam->steps + ++steps, sizes, gradients);
        if (k % set->in_pass == 0) {
            const double sum = metrics[5] - k + metrics[3];  // of r - 1 - log r
            if (sum - before > double(set->target_kl) * set->in_pass) break;
            before = sum;
        }
    }
    for (int i = 0; i < 6; ++i) metrics[i] /= k;
    return steps;
}
