"""What experiments need: data, models, training, interventions."""
