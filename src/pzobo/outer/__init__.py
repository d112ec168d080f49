"""How is a bilevel problem trained? The problem, a method, its objective, minibatches and the outer loop."""
