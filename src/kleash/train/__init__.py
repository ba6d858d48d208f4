"""Training against a judge with a KL penalty, many betas at once: what happens as the dial turns."""
